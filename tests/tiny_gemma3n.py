"""A tiny random Gemma 3n. No constant has the value that changes nothing; prompts go beyond
windows."""

from __future__ import annotations

import numpy as np

from tests import tiny
from tests.tiny import Array, TinyModel

_SLIDE, _FULL = "sliding_attention", "full_attention"
_GEMMA3N: dict[str, object] = {
    "architectures": ["Gemma3nForCausalLM"],
    "model_type": "gemma3n_text",
    "hidden_size": 64,
    "intermediate_size": [64, 96, 64, 32, 64, 96],
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": tiny.VOCAB,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "attention_bias": False,
    "sliding_window": 8,
    "layer_types": [_SLIDE, _FULL] * 3,
    "rope_theta": 50000.0,
    "rope_local_base_freq": 2000.0,
    "final_logit_softcapping": 20.0,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": tiny.VOCAB,
    "altup_num_inputs": 4,
    "altup_active_idx": 1,
    "altup_correct_scale": True,
    "laurel_rank": 32,
    "activation_sparsity_pattern": [0.8, 0.0, 0.3, 0.0, 0.6, 0.0],
    "bos_token_id": tiny.BOS,
    "eos_token_id": tiny.EOS,
    "pad_token_id": 2,
    "torch_dtype": "float32",
}


def gemma3n(**overrides: object) -> TinyModel:
    config = _GEMMA3N | overrides
    tensors = {name: _weight(name, shape) for name, shape in _shapes(config).items()}
    return TinyModel("tiny-gemma3n", config, tensors)


def gemma3n_few() -> TinyModel:
    """Three streams, of which layers read the corrected one as it is; tokens without embeddings of
    layers."""
    return gemma3n(
        altup_num_inputs=3,
        altup_active_idx=2,
        altup_correct_scale=False,
        num_kv_shared_layers=0,
        vocab_size_per_layer_input=tiny.VOCAB - 200,
    )


def gemma3n_seeing() -> TinyModel:
    """As released: with what sees and hears, which is not computed."""
    text = gemma3n()
    config: dict[str, object] = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "model_type": "gemma3n",
        "tie_word_embeddings": True,
        "text_config": text.config,
        "vision_config": {"model_type": "gemma3n_vision"},
        "audio_config": {"model_type": "gemma3n_audio"},
    }
    tensors = {
        name.replace("model.", "model.language_model.", 1): x for name, x in text.tensors.items()
    }
    for name in ("vision_tower.x", "audio_tower.x", "embed_vision.x", "embed_audio.x"):
        tensors[f"model.{name}.weight"] = np.ones((2, 2), np.float32)
    return TinyModel("tiny-gemma3n-seeing", config, tensors)


def _weight(name: str, shape: tuple[int, ...]) -> Array:
    seed = f"gemma3n/{name}"
    if name.endswith(("norm.weight", "scale")):
        return tiny.uniform(seed, shape, 0.3, 0.8)
    if "embed_tokens" in name:
        return tiny.uniform(seed, shape, 1.0)
    if name.endswith("modality_router.weight"):
        return tiny.uniform(seed, shape, 10.0)
    if name.endswith("coefs.weight"):
        return tiny.uniform(seed, shape, 0.4)
    return tiny.uniform(seed, shape, 1.5 * (3.0 / shape[-1]) ** 0.5)


def _shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Of every tensor, by name."""
    size = TinyModel("", config, {}).size
    hidden, n_layers, width, n = (
        size(x)
        for x in (
            "hidden_size",
            "num_hidden_layers",
            "hidden_size_per_layer_input",
            "altup_num_inputs",
        )
    )
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (size("vocab_size"), hidden),
        "model.norm.weight": (hidden,),
        "model.embed_tokens_per_layer.weight": (
            size("vocab_size_per_layer_input"),
            n_layers * width,
        ),
        "model.per_layer_model_projection.weight": (n_layers * width, hidden),
        "model.per_layer_projection_norm.weight": (width,),
    }
    for i in range(n - 1):
        for way in ("projections", "unembed_projections"):
            shapes[f"model.altup_{way}.{i}.weight"] = (hidden, hidden)
    for layer in range(n_layers):
        parts = _attention(config, layer) | _mlp(config, layer) | _beside(config)
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        parts |= {f"{name}_layernorm.weight": (hidden,) for name in norms}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    return shapes


def _beside(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    size = TinyModel("", config, {}).size
    hidden, width, n = (
        size(x) for x in ("hidden_size", "hidden_size_per_layer_input", "altup_num_inputs")
    )
    rank = size("laurel_rank")
    return {
        "per_layer_input_gate.weight": (width, hidden),
        "per_layer_projection.weight": (hidden, width),
        "post_per_layer_input_norm.weight": (hidden,),
        "laurel.linear_left.weight": (rank, hidden),
        "laurel.linear_right.weight": (hidden, rank),
        "laurel.post_laurel_norm.weight": (hidden,),
        "altup.correct_output_scale": (hidden,),
        "altup.correction_coefs.weight": (n, n),
        "altup.prediction_coefs.weight": (n * n, n),
        "altup.modality_router.weight": (n, hidden),
        "altup.router_norm.weight": (hidden,),
    }


def _attention(config: dict[str, object], layer: int) -> dict[str, tuple[int, ...]]:
    size = TinyModel("", config, {}).size
    hidden, dim = size("hidden_size"), size("head_dim")
    n_q, n_kv = size("num_attention_heads") * dim, size("num_key_value_heads") * dim
    is_shared = layer >= size("num_hidden_layers") - size("num_kv_shared_layers")
    rows = {"q": n_q, **({} if is_shared else {"k": n_kv, "v": n_kv})}
    found: dict[str, tuple[int, ...]] = {}
    for letter, n in rows.items():
        found[f"self_attn.{letter}_proj.weight"] = (n, hidden)
        if config["attention_bias"]:
            found[f"self_attn.{letter}_proj.bias"] = (n,)
        if letter != "v":
            found[f"self_attn.{letter}_norm.weight"] = (dim,)
    found["self_attn.o_proj.weight"] = (hidden, n_q)
    if config["attention_bias"]:
        found["self_attn.o_proj.bias"] = (hidden,)
    return found


def _mlp(config: dict[str, object], layer: int) -> dict[str, tuple[int, ...]]:
    hidden, sizes = TinyModel("", config, {}).size("hidden_size"), config["intermediate_size"]
    assert isinstance(sizes, list)
    return {
        "mlp.gate_proj.weight": (sizes[layer], hidden),
        "mlp.up_proj.weight": (sizes[layer], hidden),
        "mlp.down_proj.weight": (hidden, sizes[layer]),
    }
