"""A tiny SmolVLM: its language model, its tower, its processor, and a tokenizer that writes its
images. Its template is that of the released models, without their line breaks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests import tiny
from tests.tiny import Array, TinyModel, uniform

TILE, PATCH, FOLD = 32, 8, 2
N_TOKENS = (TILE // PATCH // FOLD) ** 2
"""That stand for a tile."""
LONGEST = 64
"""Pixels: an image becomes at most 2 x 2 tiles and one of the whole."""
PARTS = (
    *("<image>", "<fake_token_around_image>", "<global-img>", "<end_of_utterance>"),
    *(f"<row_{row}_col_{column}>" for row in (1, 2) for column in (1, 2)),
)
VOCAB = tiny.VOCAB + 8
IMAGE = VOCAB - len(PARTS)
END = IMAGE + PARTS.index("<end_of_utterance>")
CHAT_TEMPLATE = (
    "<|im_start|>{% for message in messages %}{{message['role'] | capitalize}}"
    "{% if message['content'][0]['type'] == 'image' %}{{':'}}{% else %}{{': '}}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{line['text']}}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}"
    "<end_of_utterance>\n{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)
PROCESSOR: Mapping[str, object] = {
    "image_processor_type": "SmolVLMImageProcessor",
    "size": {"longest_edge": LONGEST},
    "max_image_size": {"longest_edge": TILE},
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_pad": True,
    "do_image_splitting": True,
    "rescale_factor": 1 / 255,
    "resample": 1,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.7],
}


def smolvlm(
    patch: int = PATCH, trained: int = TILE, hidden: int = 32, **text_config: object
) -> TinyModel:
    """``trained``: pixels of a side that the table of positions is for; ``hidden``: numbers of two
    heads of the tower; ``text_config``: fields of the language model."""
    text = tiny.llama("tiny-smolvlm", vocab_size=VOCAB, num_hidden_layers=2, **text_config)
    vision: dict[str, object] = {
        "model_type": "smolvlm_vision",
        "hidden_size": hidden,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": trained,
        "patch_size": patch,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
    }
    config: dict[str, object] = {
        "architectures": ["SmolVLMForConditionalGeneration"],
        "model_type": "smolvlm",
        "image_token_id": IMAGE,
        "scale_factor": FOLD,
        "tie_word_embeddings": False,
        "text_config": {**text.config, "pad_token_id": 1, "architectures": ["LlamaForCausalLM"]},
        "vision_config": vision,
    }
    named = {
        key if key == "lm_head.weight" else key.replace("model.", "model.text_model.", 1): values
        for key, values in text.tensors.items()
    }
    named |= {f"model.{key}": values for key, values in siglip(vision).items()}
    proj, shape = "connector.modality_projection.proj", (text.size("hidden_size"), hidden * FOLD**2)
    named[f"model.{proj}.weight"] = uniform(f"vision/{proj}", shape, gain(shape))
    return TinyModel("tiny-smolvlm", config, named)


def siglip_config(hidden: int, tile: int, patch: int) -> dict[str, object]:
    """``hidden``: numbers of two heads; ``tile``, ``patch``: pixels of a side."""
    return {
        "model_type": "siglip_vision_model",
        "hidden_size": hidden,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": tile,
        "patch_size": patch,
        "layer_norm_eps": 1e-5,
        "hidden_act": "gelu",
        "vision_use_head": False,
    }


def siglip(vision: Mapping[str, object]) -> dict[str, Array]:
    """Tensors of the encoder that ``vision`` describes, without what stands before their names."""
    hidden, inner, patch = (
        int(str(vision[x])) for x in ("hidden_size", "intermediate_size", "patch_size")
    )
    side = int(str(vision["image_size"])) // patch
    shapes: dict[str, tuple[int, ...]] = {
        "vision_model.embeddings.patch_embedding": (hidden, 3, patch, patch),
    }
    norms = ["vision_model.post_layernorm"]
    for layer in range(2):
        part = f"vision_model.encoder.layers.{layer}"
        shapes |= {f"{part}.self_attn.{x}": (hidden, hidden) for x in _PROJECTIONS}
        shapes |= {f"{part}.mlp.fc1": (inner, hidden), f"{part}.mlp.fc2": (hidden, inner)}
        norms += [f"{part}.layer_norm1", f"{part}.layer_norm2"]
    tensors = {
        f"{name}.weight": uniform(f"vision/{name}", shape, gain(shape))
        for name, shape in shapes.items()
    }
    for name, shape in shapes.items():
        tensors[f"{name}.bias"] = uniform(f"vision/{name}/bias", shape[:1], 0.3)
    for name in norms:
        tensors[f"{name}.weight"] = uniform(f"vision/{name}", (hidden,), 0.3, 1.0)
        tensors[f"{name}.bias"] = uniform(f"vision/{name}/bias", (hidden,), 0.3)
    table = "vision_model.embeddings.position_embedding"
    tensors[f"{table}.weight"] = uniform(f"vision/{table}", (side**2, hidden), 1.0)
    return tensors


_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")


def gain(shape: tuple[int, ...]) -> float:
    """That keeps the size of what a matrix, or a kernel, reads."""
    n_inputs = 1
    for size in shape[1:]:
        n_inputs *= size
    return 2.0 * float((3.0 / n_inputs) ** 0.5)


def write(model: TinyModel, folder: Path, n_tokens: int = N_TOKENS, **processor: object) -> Path:
    """A folder that ``transformers`` reads as well. ``processor``: fields of its own."""
    tiny.write_hf(model, folder)
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens(list(PARTS))
    assert tokenizer.token_to_id("<image>") == IMAGE, tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": tiny.SPECIAL[tiny.BOS], "eos_token": "<end_of_utterance>"}
    settings |= {"chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    said = {**PROCESSOR, **processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_len": n_tokens}))
    return folder
