"""A tiny Gemma 4 that sees: its tower, its processor, and a tokenizer with a token before an image
and one behind it. Its template is that of the released models, shortened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tests import tiny, tiny_gemma
from tests.tiny import Array, TinyModel, uniform
from tests.tiny_vision import gain

PATCH, FOLD, MOST = 4, 3, 8
"""The last: tokens of an image."""
AXIS, HIDDEN, INNER, DEPTH, HEADS = 40, 32, 48, 2, 2
PARTS = ("<|image|>", "<|image>", "<image|>")
VOCAB = tiny.VOCAB + len(PARTS)
IMAGE, BEGIN, END = range(tiny.VOCAB, VOCAB)
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] | trim }}{% else %}"
    "{% for item in message['content'] %}{% if item['type'] == 'image' %}{{ '\n\n<|image|>\n\n' }}"
    "{% elif item['type'] == 'text' %}{{ item['text'] | trim }}{% endif %}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>model\n{% endif %}"
)
PROCESSOR: Mapping[str, object] = {
    "image_processor_type": "Gemma4ImageProcessor",
    "max_soft_tokens": MOST,
    "patch_size": PATCH,
    "pooling_kernel_size": FOLD,
    "do_convert_rgb": True,
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": False,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "image_mean": [0.0, 0.0, 0.0],
    "image_std": [1.0, 1.0, 1.0],
}


def gemma4_vision(
    head_dim: int = 24,
    standardize: bool = True,
    spans: bool = True,
    experts: bool = False,
    **text_config: object,
) -> TinyModel:
    """``head_dim``: of the tower's two heads; ``spans``: tokens of an image see each other;
    ``text_config``: fields of the language model."""
    own: dict[str, object] = {"vocab_size": VOCAB, "hidden_size_per_layer_input": 0}
    own |= {"use_bidirectional_attention": "vision" if spans else None}
    own |= {"num_kv_shared_layers": 0, "use_double_wide_mlp": False}
    make = tiny_gemma.gemma4_moe if experts else tiny_gemma.gemma4
    text = make(**{**own, **text_config})
    vision: dict[str, object] = {
        "model_type": "gemma4_vision",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": DEPTH,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": head_dim,
        "patch_size": PATCH,
        "pooling_kernel_size": FOLD,
        "position_embedding_size": AXIS,
        "rms_norm_eps": 1e-5,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": {"rope_type": "axial", "rope_theta": 50.0},
        "standardize": standardize,
        "use_clipped_linears": False,
    }
    config: dict[str, object] = {
        "architectures": ["Gemma4ForConditionalGeneration"],
        "model_type": "gemma4",
        "image_token_id": IMAGE,
        "boi_token_id": BEGIN,
        "eoi_token_id": END,
        "audio_config": None,
        "tie_word_embeddings": True,
        "text_config": text.config,
        "vision_config": vision,
    }
    tensors = {
        f"model.language_model.{key.removeprefix('model.')}": values
        for key, values in text.tensors.items()
    }
    tensors |= _tower(head_dim, standardize)
    base, shape = "model.embed_vision.embedding_projection", (text.size("hidden_size"), HIDDEN)
    tensors[f"{base}.weight"] = uniform(f"gemma4/{base}", shape, gain(shape))
    return TinyModel("tiny-gemma4-vision", config, tensors)


def _tower(head_dim: int, standardize: bool) -> dict[str, Array]:
    base, wide = "model.vision_tower.", HEADS * head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "patch_embedder.input_proj.weight": (HIDDEN, 3 * PATCH**2)
    }
    vectors: dict[str, int] = {}
    for layer in range(DEPTH):
        part = f"encoder.layers.{layer}"
        heads = [f"{part}.self_attn.{x}_proj.linear.weight" for x in "qkv"]
        shapes |= dict.fromkeys(heads, (wide, HIDDEN))
        shapes[f"{part}.self_attn.o_proj.linear.weight"] = (HIDDEN, wide)
        inner = [f"{part}.mlp.{x}_proj.linear.weight" for x in ("gate", "up")]
        shapes |= dict.fromkeys(inner, (INNER, HIDDEN))
        shapes[f"{part}.mlp.down_proj.linear.weight"] = (HIDDEN, INNER)
        vectors |= {f"{part}.self_attn.{x}_norm.weight": head_dim for x in "qk"}
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        vectors |= {f"{part}.{x}_layernorm.weight": HIDDEN for x in norms}
    tensors = {
        base + name: uniform(f"gemma4/{name}", shape, gain(shape)) for name, shape in shapes.items()
    }
    tensors |= {
        base + name: uniform(f"gemma4/{name}", (n,), 0.3, 0.8) for name, n in vectors.items()
    }
    table = "patch_embedder.position_embedding_table"
    tensors[base + table] = uniform(f"gemma4/{table}", (2, AXIS, HIDDEN), 0.5)
    if standardize:
        tensors[f"{base}std_bias"] = uniform("gemma4/std_bias", (HIDDEN,), 0.7)
        tensors[f"{base}std_scale"] = uniform("gemma4/std_scale", (HIDDEN,), 0.3, 0.6)
    return tensors


def write(model: TinyModel, folder: Path, **processor: object) -> Path:
    """A folder that ``transformers`` reads as well. ``processor``: fields of its own."""
    tiny.write_hf(model, folder)
    tokenizer = tiny.tokenizer()
    tokenizer.add_special_tokens(list(PARTS))
    assert tokenizer.token_to_id("<|image|>") == IMAGE, tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": tiny.SPECIAL[tiny.BOS], "eos_token": "<|im_end|>"}
    settings |= dict(zip(("image_token", "boi_token", "eoi_token"), PARTS, strict=True))
    settings |= {"chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    said = {"image_processor": {**PROCESSOR, **processor}, "image_seq_length": 280}
    (folder / "processor_config.json").write_text(json.dumps(said))
    return folder
