"""Tiny InternVLs: a tower whose parts have factors and whose first row is of no patch, a processor,
and a tokenizer that writes images. The template is that of the released models, shortened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests import tiny
from tests.tiny import Array, TinyModel, uniform
from tests.tiny_vision import gain

TILE, PATCH, FOLD, DEPTH = 32, 8, 2, 2
N_TOKENS = (TILE // PATCH // FOLD) ** 2
"""That stand for a tile."""
MOST = 4
"""Tiles of an image, and one of the whole."""
PARTS = ("<img>", "</img>", "<IMG_CONTEXT>")
VOCAB = tiny.VOCAB + len(PARTS)
BEGIN, END, IMAGE = range(tiny.VOCAB, VOCAB)
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for content in message['content'] %}{% if content['type'] == 'image' %}"
    "{{ '<IMG_CONTEXT>\n' }}{% elif content['type'] == 'text' %}{{ content['text'] }}{% endif %}"
    "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PROCESSOR: Mapping[str, object] = {
    "image_processor_type": "GotOcr2ImageProcessor",
    "size": {"height": TILE, "width": TILE},
    "crop_to_patches": False,  # what its processor asks for nevertheless
    "min_patches": 1,
    "max_patches": MOST,
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
}


def internvl(hidden: int = 48, bias: bool = True, **text_config: object) -> TinyModel:
    """A Qwen 2 that sees. ``hidden``: numbers of two heads of the tower; ``bias``: of its queries,
    keys and values."""
    return _seeing(tiny.qwen2(vocab_size=VOCAB, **text_config), hidden, bias)


def internvl_large(**text_config: object) -> TinyModel:
    """With a tower like that of 6B: RMS norms, also of queries and keys."""
    return _seeing(tiny.qwen2(vocab_size=VOCAB, **text_config), 32, True, rms=True)


def internvl_qwen3(hidden: int = 32, **text_config: object) -> TinyModel:
    """A Qwen 3 that sees, without biases in the tower's queries, keys and values."""
    return _seeing(tiny.qwen3(vocab_size=VOCAB, **text_config), hidden, False)


def _seeing(text: TinyModel, hidden: int, bias: bool, rms: bool = False) -> TinyModel:
    vision: dict[str, object] = {
        "model_type": "internvl_vision",
        "hidden_size": hidden,
        "intermediate_size": 40,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": 2,
        "attention_bias": bias,
        "image_size": [TILE, TILE],
        "patch_size": [PATCH, PATCH],
        "layer_norm_eps": 1e-6 if rms else 1e-5,
        "norm_type": "rms_norm" if rms else "layer_norm",
        "use_qk_norm": rms,
        "hidden_act": "gelu_pytorch_tanh",
    }
    config: dict[str, object] = {
        "architectures": ["InternVLForConditionalGeneration"],
        "model_type": "internvl",
        "image_token_id": IMAGE,
        "image_seq_length": N_TOKENS,
        "downsample_ratio": 1 / FOLD,
        "tie_word_embeddings": text.config["tie_word_embeddings"],
        "text_config": text.config,
        "vision_config": vision,
    }
    tensors = {f"language_model.{key}": values for key, values in text.tensors.items()}
    tower = _tower(hidden, bias, rms) | _connector(hidden, text.size("hidden_size"))
    return TinyModel(f"tiny-internvl-{text.name}", config, tensors | tower)


def _tower(hidden: int, bias: bool, rms: bool) -> dict[str, Array]:
    n, inner, base = (TILE // PATCH) ** 2 + 1, 40, "vision_tower."
    patch = f"{base}embeddings.patch_embeddings.projection"
    matrices: dict[str, tuple[int, ...]] = {patch: (hidden, 3, PATCH, PATCH)}
    tensors = {
        f"{base}embeddings.cls_token": uniform("internvl/cls", (1, 1, hidden), 0.7),
        f"{base}embeddings.position_embeddings": uniform("internvl/at", (1, n, hidden), 1.0),
    }
    bare = set()
    for layer in range(DEPTH):
        part = f"{base}encoder.layer.{layer}"
        heads = [f"{part}.attention.{x}_proj" for x in "qkv"]
        bare |= set() if bias else {*heads}
        matrices |= dict.fromkeys([*heads, f"{part}.attention.projection_layer"], (hidden, hidden))
        matrices |= {f"{part}.mlp.fc1": (inner, hidden), f"{part}.mlp.fc2": (hidden, inner)}
        norms = ["layernorm_before", "layernorm_after"]
        for x in [*norms, "attention.q_norm", "attention.k_norm"] if rms else norms:
            tensors[f"{part}.{x}.weight"] = uniform(f"internvl/{part}/{x}", (hidden,), 0.3, 1.0)
            if not rms:
                bias_of = f"internvl/{part}/{x}/bias"
                tensors[f"{part}.{x}.bias"] = uniform(bias_of, (hidden,), 0.3)
        for x in ("lambda_1", "lambda_2"):
            tensors[f"{part}.{x}"] = uniform(f"internvl/{part}/{x}", (hidden,), 0.4, 0.8)
    for name, shape in matrices.items():
        tensors[f"{name}.weight"] = uniform(f"internvl/{name}", shape, gain(shape))
        if name not in bare:
            tensors[f"{name}.bias"] = uniform(f"internvl/{name}/bias", shape[:1], 0.3)
    return tensors


def _connector(hidden: int, out: int) -> dict[str, Array]:
    columns, base = hidden * FOLD**2, "multi_modal_projector."
    shapes = {"linear_1": (out, columns), "linear_2": (out, out)}
    tensors = {
        f"{base}layer_norm.weight": uniform("internvl/row_norm", (columns,), 0.3, 1.0),
        f"{base}layer_norm.bias": uniform("internvl/row_norm/bias", (columns,), 0.3),
    }
    for name, shape in shapes.items():
        tensors[f"{base}{name}.weight"] = uniform(f"internvl/{name}", shape, gain(shape))
        tensors[f"{base}{name}.bias"] = uniform(f"internvl/{name}/bias", shape[:1], 0.3)
    return tensors


def write(model: TinyModel, folder: Path, **processor: object) -> Path:
    """A folder that ``transformers`` reads as well. ``processor``: fields of its own."""
    tiny.write_hf(model, folder)
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens(list(PARTS))
    assert tokenizer.token_to_id("<IMG_CONTEXT>") == IMAGE, tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": tiny.SPECIAL[tiny.BOS], "eos_token": "<|im_end|>"}
    names = "start_image_token", "end_image_token", "context_image_token"
    settings |= dict(zip(names, PARTS, strict=True)) | {"chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    said = {**PROCESSOR, **processor}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    (folder / "processor_config.json").write_text(json.dumps({"image_seq_length": N_TOKENS}))
    return folder
