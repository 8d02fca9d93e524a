"""A tiny Gemma 3 that sees: its tower, its processor, and a tokenizer that writes its images, in
which two line feeds are a token. Its template is that of the released models, shortened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tests import tiny
from tests.tiny import TinyModel, uniform
from tests.tiny_vision import gain, siglip, siglip_config

TILE, PATCH, FOLD = 32, 8, 2
N_TOKENS = (TILE // PATCH // FOLD) ** 2
"""That stand for an image."""
PARTS = ("<start_of_image>", "<image_soft_token>", "<end_of_image>", "<end_of_turn>")
LINES = ("\u010a", "\u010a")
"""Line feeds, as byte-level tokenizers spell them."""
VOCAB = tiny.VOCAB + 1 + len(PARTS)
BEGIN, IMAGE, END, _ = range(tiny.VOCAB + 1, VOCAB)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<start_of_turn>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}{{ '<start_of_image>' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
PROCESSOR: Mapping[str, object] = {
    "image_processor_type": "Gemma3ImageProcessor",
    "size": {"height": TILE, "width": TILE},
    "do_convert_rgb": None,
    "do_pan_and_scan": None,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "image_seq_length": N_TOKENS,
    "rescale_factor": 1 / 255,
    "resample": 2,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.7],
}


def gemma3_vision(hidden: int = 48, **text_config: object) -> TinyModel:
    """``hidden``: numbers of two heads of the tower, 24 each; ``text_config``: fields of the
    language model."""
    # transformers' class of those that see has no soft cap of logits
    text = tiny.gemma3(**{"vocab_size": VOCAB, "final_logit_softcapping": None, **text_config})
    vision = siglip_config(hidden, TILE, PATCH)
    config: dict[str, object] = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "boi_token_index": BEGIN,
        "eoi_token_index": END,
        "image_token_index": IMAGE,
        "mm_tokens_per_image": N_TOKENS,
        "text_config": {**text.config, "architectures": ["Gemma3ForCausalLM"]},
        "vision_config": vision,
    }
    tensors = {f"language_model.{key}": values for key, values in text.tensors.items()}
    tensors |= {f"vision_tower.{key}": values for key, values in siglip(vision).items()}
    norm, proj = "mm_soft_emb_norm.weight", "mm_input_projection_weight"
    size = text.size("hidden_size")
    own = {norm: uniform(f"vision/{norm}", (hidden,), 0.3)}
    own[proj] = np.ascontiguousarray(
        uniform(f"vision/{proj}", (size, hidden), gain((size, hidden))).T
    )
    tensors |= {f"multi_modal_projector.{key}": values for key, values in own.items()}
    return TinyModel("tiny-gemma3-vision", config, tensors)


def write(model: TinyModel, folder: Path, **processor: object) -> Path:
    """A folder that ``transformers`` reads as well. ``processor``: fields of its own."""
    tiny.write_hf(model, folder)
    tokenizer = tiny.tokenizer(LINES)
    tokenizer.add_special_tokens(list(PARTS))
    assert tokenizer.token_to_id("<image_soft_token>") == IMAGE, tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": tiny.SPECIAL[tiny.BOS], "eos_token": "<end_of_turn>"}
    settings |= dict(zip(("boi_token", "image_token", "eoi_token"), PARTS, strict=False))
    settings |= {"chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    said = {**PROCESSOR, **processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": N_TOKENS}))
    return folder
