"""Tiny Pixtrals: images of any size, a token behind each line of them, a tower of patches that turn
by lines and columns, and in Mistral 3 a matrix that merges neighbours."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests import tiny, tiny_rope
from tests.tiny import Array, TinyModel, uniform
from tests.tiny_vision import gain

PATCH, FOLD, HIDDEN, INNER, DEPTH = 4, 2, 32, 40, 2
LONGEST = 48
"""Pixels of a side."""
PARTS = ("[IMG]", "[IMG_BREAK]", "[IMG_END]")
VOCAB = tiny.VOCAB + len(PARTS)
IMAGE, BREAK, END = range(tiny.VOCAB, VOCAB)
CHAT_TEMPLATE = (
    "{{ '<|bos|>' }}{% for message in messages %}<|im_start|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}[IMG]"
    "{% elif part['type'] == 'text' %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>{% endfor %}"
)
PROCESSOR: Mapping[str, object] = {
    "image_processor_type": "PixtralImageProcessor",
    "size": {"longest_edge": LONGEST},
    "patch_size": {"height": PATCH, "width": PATCH},
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.7],
}
VISION: Mapping[str, object] = {
    "model_type": "pixtral",
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 64,
    "patch_size": PATCH,
    "hidden_act": "gelu",
    "rope_theta": 300.0,
}


def mistral3(hidden: int = HIDDEN, bias: bool = False, **text_config: object) -> TinyModel:
    """``hidden``: numbers of two heads of the tower; ``bias``: of the merger's matrices."""
    names = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    own: dict[str, object] = {"vocab_size": VOCAB, "sliding_window": None, "head_dim": 32}
    text = tiny.llama("tiny-mistral3", **{**names, **own, **text_config})
    return _seeing(text, "mistral3", hidden, bias)


def mistral3_ministral3(**text_config: object) -> TinyModel:
    """Queries that grow with their position."""
    text = tiny_rope.ministral3(vocab_size=VOCAB, **text_config)
    return _seeing(text, "mistral3", HIDDEN, True)


def pixtral(**text_config: object) -> TinyModel:
    """Each patch is a row; no norm in front of the merger, and the tower's other activation."""
    text = mistral3(**text_config)
    vision = {**VISION, "hidden_act": "silu", "num_hidden_layers": DEPTH}
    names = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"}
    own = {"vision_feature_select_strategy": "full", "multimodal_projector_bias": True}
    config = {k: v for k, v in text.config.items() if k != "spatial_merge_size"}
    config |= {**names, **own, "vision_config": vision}
    tensors = {k: v for k, v in text.tensors.items() if not k.startswith("multi_modal_projector.")}
    tensors |= _merger(HIDDEN, text.tensors["language_model.lm_head.weight"].shape[1], True, False)
    return TinyModel("tiny-pixtral", config, tensors)


def _seeing(text: TinyModel, kind: str, hidden: int, bias: bool) -> TinyModel:
    config: dict[str, object] = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "model_type": kind,
        "image_token_index": IMAGE,
        "multimodal_projector_bias": bias,
        "projector_hidden_act": "gelu",
        "spatial_merge_size": FOLD,
        "vision_feature_layer": -1,
        "tie_word_embeddings": False,
        "text_config": text.config,
        "vision_config": {**VISION, "hidden_size": hidden, "num_hidden_layers": DEPTH},
    }
    tensors = {f"language_model.{key}": values for key, values in text.tensors.items()}
    merger = _merger(hidden, text.size("hidden_size"), bias, True)
    return TinyModel(f"tiny-{kind}-{text.name}", config, tensors | _tower(hidden) | merger)


def _tower(hidden: int) -> dict[str, Array]:
    base = "vision_tower."
    matrices: dict[str, tuple[int, ...]] = {f"{base}patch_conv": (hidden, 3, PATCH, PATCH)}
    norms = [f"{base}ln_pre"]
    for layer in range(DEPTH):
        part = f"{base}transformer.layers.{layer}"
        heads = [f"{part}.attention.{x}_proj" for x in "qkvo"]
        matrices |= dict.fromkeys(heads, (hidden, hidden))
        matrices |= {f"{part}.feed_forward.{x}_proj": (INNER, hidden) for x in ("gate", "up")}
        matrices[f"{part}.feed_forward.down_proj"] = (hidden, INNER)
        norms += [f"{part}.attention_norm", f"{part}.ffn_norm"]
    tensors = {
        f"{name}.weight": uniform(f"pixtral/{name}", shape, gain(shape))
        for name, shape in matrices.items()
    }
    for name in norms:
        tensors[f"{name}.weight"] = uniform(f"pixtral/{name}", (hidden,), 0.3, 1.0)
    return tensors


def _merger(hidden: int, out: int, bias: bool, merges: bool) -> dict[str, Array]:
    base = "multi_modal_projector."
    shapes = {f"{base}linear_1": (out, hidden), f"{base}linear_2": (out, out)}
    tensors: dict[str, Array] = {}
    for name, shape in shapes.items():
        tensors[f"{name}.weight"] = uniform(f"pixtral/{name}", shape, gain(shape))
        if bias:
            tensors[f"{name}.bias"] = uniform(f"pixtral/{name}/bias", shape[:1], 0.3)
    if merges:
        norm, joint = f"{base}norm.weight", f"{base}patch_merger.merging_layer.weight"
        shape = (hidden, hidden * FOLD**2)
        tensors[norm] = uniform(f"pixtral/{norm}", (hidden,), 0.3, 1.0)
        tensors[joint] = uniform(f"pixtral/{joint}", shape, gain(shape))
    return tensors


def write(model: TinyModel, folder: Path, **processor: object) -> Path:
    """A folder that ``transformers`` reads as well. ``processor``: fields of its own."""
    tiny.write_hf(model, folder)
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens(list(PARTS))
    assert tokenizer.token_to_id(PARTS[0]) == IMAGE, tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": tiny.SPECIAL[tiny.BOS], "eos_token": "<|im_end|>"}
    settings |= {"chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **processor}))
    names = "image_token", "image_break_token", "image_end_token"
    fold = model.config.get("spatial_merge_size", 1)
    said = {**dict(zip(names, PARTS, strict=True)), "patch_size": PATCH, "spatial_merge_size": fold}
    (folder / "processor_config.json").write_text(json.dumps(said))
    return folder
