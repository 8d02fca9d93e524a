"""A tiny LLaVA-OneVision: a tower whose tiles have pixels that no patch reads, and an image that
may be shrunk. Its template is that of the released models, shortened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests import tiny
from tests.tiny import TinyModel, uniform
from tests.tiny_vision import gain, siglip, siglip_config

TILE, PATCH = 34, 8
SIDE = TILE // PATCH
N_TOKENS = SIDE**2
"""That stand for a tile."""
MOST = 2
"""Tiles whose rows an image may have."""
SIZES = [[TILE * y, TILE * x] for y in (1, 2, 3) for x in (1, 2, 3)]
PARTS = ("<image>",)
VOCAB = tiny.VOCAB + len(PARTS)
IMAGE = tiny.VOCAB
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }} "
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] if content['type'] == 'image' %}{{ '<image>' }}"
    "{% endfor %}{% for content in message['content'] if content['type'] == 'text' %}"
    "{{ '\n' + content['text'] }}{% endfor %}{% endif %}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR: Mapping[str, object] = {
    "image_processor_type": "LlavaOnevisionImageProcessor",
    "size": {"height": TILE, "width": TILE},
    "image_grid_pinpoints": SIZES,
    "do_convert_rgb": True,
    "do_pad": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.7],
}


def llava_onevision(hidden: int = 48, **text_config: object) -> TinyModel:
    """``hidden``: numbers of two heads of the tower, 24 each; ``text_config``: fields of the
    language model."""
    text = tiny.qwen2(vocab_size=VOCAB, **text_config)
    vision = siglip_config(hidden, TILE, PATCH)
    config: dict[str, object] = {
        "architectures": ["LlavaOnevisionForConditionalGeneration"],
        "model_type": "llava_onevision",
        "image_token_index": IMAGE,
        "image_grid_pinpoints": SIZES,
        "vision_aspect_ratio": f"anyres_max_{MOST}",
        "tie_word_embeddings": False,
        "text_config": text.config,
        "vision_config": vision,
    }
    tensors = {f"language_model.{key}": values for key, values in text.tensors.items()}
    tensors |= {f"vision_tower.{key}": values for key, values in siglip(vision).items()}
    out = text.size("hidden_size")
    for name, shape in {"linear_1": (out, hidden), "linear_2": (out, out)}.items():
        base = f"multi_modal_projector.{name}"
        tensors[f"{base}.weight"] = uniform(f"vision/{base}", shape, gain(shape))
        tensors[f"{base}.bias"] = uniform(f"vision/{base}/bias", shape[:1], 0.3)
    tensors["image_newline"] = uniform("vision/newline", (out,), 0.7)
    return TinyModel("tiny-llava-onevision", config, tensors)


def write(model: TinyModel, folder: Path, **processor: object) -> Path:
    """A folder that ``transformers`` reads as well. ``processor``: fields of its own."""
    tiny.write_hf(model, folder)
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens(list(PARTS))
    assert tokenizer.token_to_id("<image>") == IMAGE, tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": tiny.SPECIAL[tiny.BOS], "eos_token": "<|im_end|>"}
    settings |= {"chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **processor}))
    said = {"num_image_tokens": N_TOKENS, "vision_aspect_ratio": f"anyres_max_{MOST}"}
    (folder / "processor_config.json").write_text(json.dumps(said))
    return folder
