"""A tiny Qwen3-VL: its language model, its tower, its processor, and a tokenizer that writes its
images. Its template is that of the released models, without their tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from tests import tiny, tiny_scan
from tests.tiny import Array, TinyModel, uniform

PATCH, FOLD, FRAMES = 4, 2, 2
UNIT = PATCH * FOLD
"""Pixels of a side of a token."""
LEAST, MOST = 2 * UNIT**2, 30 * UNIT**2
"""Pixels of an image."""
PARTS = ("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
VOCAB = tiny.VOCAB + len(PARTS)
IMAGE = tiny.VOCAB
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] %}{% if part['type'] == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% elif part['type'] == 'text' %}"
    "{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR: Mapping[str, object] = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "processor_class": "Qwen3VLProcessor",
    "size": {"shortest_edge": LEAST, "longest_edge": MOST},
    "patch_size": PATCH,
    "temporal_patch_size": FRAMES,
    "merge_size": FOLD,
    "image_mean": [0.5, 0.4, 0.6],
    "image_std": [0.5, 0.3, 0.7],
}
HIDDEN, INNER, DEPTH, SIDE = 64, 96, 3, 5
VISION: Mapping[str, object] = {
    "model_type": "qwen3_vl",
    "depth": DEPTH,
    "hidden_size": HIDDEN,
    "hidden_act": "gelu_pytorch_tanh",
    "intermediate_size": INNER,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": PATCH,
    "spatial_merge_size": FOLD,
    "temporal_patch_size": FRAMES,
    "out_hidden_size": 64,
    "num_position_embeddings": SIDE**2,
    "deepstack_visual_indexes": [0, 1],
}


def qwen3_vl(vision: Mapping[str, object] = VISION, **text_config: object) -> TinyModel:
    """``text_config``: fields of the language model."""
    rope = {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True}
    text = tiny.qwen3(vocab_size=VOCAB, rope_scaling=rope, **text_config)
    text = replace(text, config={**text.config, "model_type": "qwen3_vl_text"})
    kind = {"architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl"}
    return _seeing("tiny-qwen3-vl", kind, text, vision)


def _seeing(
    name: str, kind: Mapping[str, object], text: TinyModel, vision: Mapping[str, object]
) -> TinyModel:
    """``text`` with a tower, and with tokens for images."""
    config: dict[str, object] = {
        **kind,
        "image_token_id": IMAGE,
        "video_token_id": IMAGE + 1,
        "vision_start_token_id": IMAGE + 2,
        "vision_end_token_id": IMAGE + 3,
        "tie_word_embeddings": False,
        "text_config": text.config,
        "vision_config": dict(vision),
    }
    named = {
        key if key == "lm_head.weight" else key.replace("model.", "model.language_model.", 1): x
        for key, x in text.tensors.items()
    }
    embed, head = "model.language_model.embed_tokens.weight", "lm_head.weight"
    named[embed] = uniform(f"{name}/embed", (VOCAB, HIDDEN), 1.0)
    named[head] = uniform(f"{name}/head", (VOCAB, HIDDEN), 0.4)
    return TinyModel(name, config, named | _tower(vision))


_ROPE = {
    **{"mrope_section": [2, 1, 1], "mrope_interleaved": True, "rope_type": "default"},
    **{"rope_theta": 20000.0, "partial_rotary_factor": 0.25},
}


def qwen3_5_vl(**text_config: object) -> TinyModel:
    """Delta nets in most layers; no rows of the tower are added."""
    text = tiny_scan.qwen3_5(**{"rope_parameters": _ROPE, "vocab_size": VOCAB, **text_config})
    return _qwen3_5("tiny-qwen3-5-vl", "Qwen3_5", "qwen3_5", text)


def qwen3_5_moe_vl(**text_config: object) -> TinyModel:
    """The same with experts."""
    text = tiny_scan.qwen3_5_moe(**{"rope_parameters": _ROPE, "vocab_size": VOCAB, **text_config})
    return _qwen3_5("tiny-qwen3-5-moe-vl", "Qwen3_5Moe", "qwen3_5_moe", text)


def _qwen3_5(name: str, architecture: str, model_type: str, text: TinyModel) -> TinyModel:
    named = {"architectures": [f"{architecture}ForConditionalGeneration"]}
    vision = {**VISION, "model_type": model_type, "deepstack_visual_indexes": []}
    return _seeing(name, {**named, "model_type": model_type}, text, vision)


def _tower(vision: Mapping[str, object]) -> dict[str, Array]:
    merged, deep = HIDDEN * FOLD**2, vision.get("deepstack_visual_indexes")
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embed.proj": (HIDDEN, 3, FRAMES, PATCH, PATCH),
        **_merger("merger", merged),
    }
    norms = {"merger.norm": HIDDEN}
    for i in range(len(deep) if isinstance(deep, list) else 0):
        shapes |= _merger(f"deepstack_merger_list.{i}", merged)
        norms[f"deepstack_merger_list.{i}.norm"] = merged
    for layer in range(DEPTH):
        part = f"blocks.{layer}"
        shapes |= {f"{part}.attn.qkv": (3 * HIDDEN, HIDDEN), f"{part}.attn.proj": (HIDDEN, HIDDEN)}
        shapes |= {f"{part}.mlp.linear_fc1": (INNER, HIDDEN)}
        shapes |= {f"{part}.mlp.linear_fc2": (HIDDEN, INNER)}
        norms |= {f"{part}.norm1": HIDDEN, f"{part}.norm2": HIDDEN}
    tensors: dict[str, Array] = {}
    for name, shape in shapes.items():
        key, gain = f"model.visual.{name}", 2.0 * float((3.0 / _inputs(shape)) ** 0.5)
        tensors[f"{key}.weight"] = uniform(key, shape, gain)
        tensors[f"{key}.bias"] = uniform(f"{key}/bias", shape[:1], 0.3)
    for name, n in norms.items():
        key = f"model.visual.{name}"
        tensors[f"{key}.weight"] = uniform(key, (n,), 0.3, 1.0)
        tensors[f"{key}.bias"] = uniform(f"{key}/bias", (n,), 0.3)
    table = "model.visual.pos_embed.weight"
    tensors[table] = uniform(table, (SIDE**2, HIDDEN), 1.0)
    return tensors


def _merger(name: str, merged: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.linear_fc1": (merged, merged), f"{name}.linear_fc2": (64, merged)}


def _inputs(shape: tuple[int, ...]) -> int:
    n = 1
    for size in shape[1:]:
        n *= size
    return n


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
    return folder


OLDER_VISION: Mapping[str, object] = {
    "model_type": "qwen2_5_vl",
    "depth": 4,
    "hidden_size": HIDDEN,
    "hidden_act": "silu",
    "intermediate_size": INNER,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": PATCH,
    "spatial_merge_size": FOLD,
    "temporal_patch_size": FRAMES,
    "window_size": 2 * UNIT,
    "out_hidden_size": 64,
    "fullatt_block_indexes": [1, 3],
}
"""Windows of 2 x 2 tokens in the first and the third layer."""


def qwen2_5_vl(**text_config: object) -> TinyModel:
    """Sections of M-RoPE one behind the other, a tower with windows; the fields of the language
    model are at the top, as in released folders."""
    rope = {"type": "mrope", "mrope_section": [2, 3, 3]}
    text = tiny.qwen2(vocab_size=VOCAB, rope_scaling=rope, tie_word_embeddings=False, **text_config)
    kind = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl"}
    nested = _seeing("tiny-qwen2-5-vl", kind, text, OLDER_VISION)
    config = {k: v for k, v in nested.config.items() if k != "text_config"}
    own = {k: v for k, v in nested.tensors.items() if not k.startswith("model.visual.")}
    named = {k.replace("model.language_model.", "model."): v for k, v in own.items()}
    return replace(nested, config={**text.config, **config}, tensors={**named, **_older_tower()})


def _older_tower() -> dict[str, Array]:
    merged = HIDDEN * FOLD**2
    shapes: dict[str, tuple[int, ...]] = {"merger.mlp.0": (merged, merged)}
    shapes["merger.mlp.2"] = (64, merged)
    norms = ["merger.ln_q"]
    for layer in range(4):
        part = f"blocks.{layer}"
        shapes |= {f"{part}.attn.qkv": (3 * HIDDEN, HIDDEN), f"{part}.attn.proj": (HIDDEN, HIDDEN)}
        shapes |= {f"{part}.mlp.{x}_proj": (INNER, HIDDEN) for x in ("gate", "up")}
        shapes[f"{part}.mlp.down_proj"] = (HIDDEN, INNER)
        norms += [f"{part}.norm1", f"{part}.norm2"]
    tensors: dict[str, Array] = {}
    for name, shape in shapes.items():
        key, gain = f"visual.{name}", 2.0 * float((3.0 / _inputs(shape)) ** 0.5)
        tensors[f"{key}.weight"] = uniform(key, shape, gain)
        tensors[f"{key}.bias"] = uniform(f"{key}/bias", shape[:1], 0.3)
    for name in norms:
        tensors[f"visual.{name}.weight"] = uniform(f"visual.{name}", (HIDDEN,), 0.3, 1.0)
    patch = (HIDDEN, 3, FRAMES, PATCH, PATCH)
    key = "visual.patch_embed.proj.weight"
    return tensors | {key: uniform(key, patch, 2.0 * float((3.0 / _inputs(patch)) ** 0.5))}


OLDEST_HIDDEN, OLDEST_DEPTH = 48, 2
OLDEST_VISION: Mapping[str, object] = {
    "model_type": "qwen2_vl",
    "depth": OLDEST_DEPTH,
    "embed_dim": OLDEST_HIDDEN,
    "hidden_size": 64,
    "hidden_act": "quick_gelu",
    "mlp_ratio": 2,
    "num_heads": 4,
    "in_channels": 3,
    "patch_size": PATCH,
    "spatial_merge_size": FOLD,
    "temporal_patch_size": FRAMES,
}
"""Narrower than the language model; heads of 12 numbers are padded."""


def qwen2_vl(**text_config: object) -> TinyModel:
    """Layer norms, an MLP without a gate, no windows."""
    later = qwen2_5_vl(**text_config)
    kind = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl"}
    vision = {**OLDEST_VISION, "depth": OLDEST_DEPTH}
    config = {**later.config, **kind, "vision_config": vision}
    own = {k: v for k, v in later.tensors.items() if not k.startswith("visual.")}
    return TinyModel("tiny-qwen2-vl", config, {**own, **_oldest_tower()})


def _oldest_tower() -> dict[str, Array]:
    hidden, merged = OLDEST_HIDDEN, OLDEST_HIDDEN * FOLD**2
    shapes: dict[str, tuple[int, ...]] = {
        "merger.mlp.0": (merged, merged),
        "merger.mlp.2": (64, merged),
    }
    norms = ["merger.ln_q"]
    for layer in range(OLDEST_DEPTH):
        part = f"blocks.{layer}"
        shapes |= {f"{part}.attn.qkv": (3 * hidden, hidden), f"{part}.attn.proj": (hidden, hidden)}
        shapes |= {f"{part}.mlp.fc1": (2 * hidden, hidden), f"{part}.mlp.fc2": (hidden, 2 * hidden)}
        norms += [f"{part}.norm1", f"{part}.norm2"]
    tensors: dict[str, Array] = {}
    for name, shape in shapes.items():
        key, gain = f"visual.{name}", 2.0 * float((3.0 / _inputs(shape)) ** 0.5)
        tensors[f"{key}.weight"] = uniform(f"oldest/{key}", shape, gain)
        tensors[f"{key}.bias"] = uniform(f"oldest/{key}/bias", shape[:1], 0.3)
    for name in norms:
        key = f"visual.{name}"
        tensors[f"{key}.weight"] = uniform(f"oldest/{key}", (hidden,), 0.3, 1.0)
        tensors[f"{key}.bias"] = uniform(f"oldest/{key}/bias", (hidden,), 0.3)
    patch = (hidden, 3, FRAMES, PATCH, PATCH)
    key, gain = "visual.patch_embed.proj.weight", 2.0 * float((3.0 / _inputs(patch)) ** 0.5)
    return tensors | {key: uniform(f"oldest/{key}", patch, gain)}


EXPERTS, EXPERT_INNER = 4, 48


def qwen3_vl_moe(**text_config: object) -> TinyModel:
    """Experts that lie input by output."""
    sizes: dict[str, object] = {
        "num_hidden_layers": 3,
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": EXPERT_INNER,
        "norm_topk_prob": True,
    }
    dense = qwen3_vl(VISION, **(sizes | text_config))
    text = cast(Mapping[str, object], dense.config["text_config"])
    kind = {"architectures": ["Qwen3VLMoeForConditionalGeneration"], "model_type": "qwen3_vl_moe"}
    config = {
        **dense.config,
        **kind,
        "text_config": {**text, "model_type": "qwen3_vl_moe_text"},
        "vision_config": {**VISION, "model_type": "qwen3_vl_moe"},
    }
    own = {k: v for k, v in dense.tensors.items() if ".layers." not in k or ".mlp." not in k}
    shapes: dict[str, tuple[int, ...]] = {}
    for layer in range(3):
        part = f"model.language_model.layers.{layer}.mlp"
        shapes[f"{part}.gate.weight"] = (EXPERTS, HIDDEN)
        shapes[f"{part}.experts.gate_up_proj"] = (EXPERTS, HIDDEN, 2 * EXPERT_INNER)
        shapes[f"{part}.experts.down_proj"] = (EXPERTS, EXPERT_INNER, HIDDEN)
    made = {name: _expert(name, shape) for name, shape in shapes.items()}
    return TinyModel("tiny-qwen3-vl-moe", config, {**own, **made})


def qwen3_vl_moe_saved(**text_config: object) -> TinyModel:
    """As transformers saves it."""
    given = qwen3_vl_moe(**text_config)
    text = dict(cast(Mapping[str, object], given.config["text_config"]))
    text["num_local_experts"] = text.pop("num_experts")
    tensors = {
        name: np.ascontiguousarray(x.swapaxes(1, 2)) if x.ndim == 3 else x
        for name, x in given.tensors.items()
    }
    config = {**given.config, "text_config": text}
    return TinyModel("tiny-qwen3-vl-moe-saved", config, tensors)


def _expert(key: str, shape: tuple[int, ...]) -> Array:
    """Routers far apart: rounding seldom changes the choice."""
    n_in, gain = (shape[1], 1.0) if len(shape) == 3 else (shape[-1], 4.0)
    return uniform(f"qwen3-vl-moe/{key}", shape, gain * (3.0 / n_in) ** 0.5)
