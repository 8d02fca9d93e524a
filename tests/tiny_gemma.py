"""Tiny random models of Gemma 4. No constant has the value that changes nothing; prompts go beyond
windows."""

from __future__ import annotations

import numpy as np

from tests import tiny
from tests.tiny import Array, TinyModel

_SLIDE, _FULL = "sliding_attention", "full_attention"
TYPES = [_SLIDE, _FULL] * 3
_GEMMA4: dict[str, object] = {
    "architectures": ["Gemma4ForCausalLM"],
    "model_type": "gemma4_text",
    "hidden_size": 64,
    "intermediate_size": 64,
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
    "layer_types": TYPES,
    "rope_parameters": {
        _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 50000.0},
        _SLIDE: {"rope_type": "default", "rope_theta": 2000.0},
    },
    "final_logit_softcapping": 20.0,
    "global_head_dim": 32,
    "num_kv_shared_layers": 2,
    "use_double_wide_mlp": True,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": tiny.VOCAB,
    "attention_k_eq_v": False,
    "enable_moe_block": False,
    "bos_token_id": tiny.BOS,
    "eos_token_id": tiny.EOS,
    "pad_token_id": 2,
    "torch_dtype": "float32",
}
_OF_FULL_LAYERS = ("global_head_dim", "num_global_key_value_heads")
_EXPERTS: dict[str, object] = {
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "enable_moe_block": True,
    "num_experts": 4,
    "top_k_experts": 2,
    "moe_intermediate_size": 32,
}


def gemma4(**overrides: object) -> TinyModel:
    """Heads of two sizes, two layers that read the keys and values of others, embeddings of each
    layer."""
    config = _GEMMA4 | overrides
    shapes = _shapes(config)
    tensors = {name: _weight(name, shape) for name, shape in shapes.items()}
    return TinyModel("tiny-gemma4", config, tensors)


def gemma4_moe(**overrides: object) -> TinyModel:
    """And experts beside the MLP, keys that are values."""
    model = gemma4(**(_EXPERTS | overrides))
    return TinyModel("tiny-gemma4-moe", model.config, model.tensors)


def gemma4_saved() -> TinyModel:
    """As ``transformers`` saves it: what layers have of their own is said layer by layer."""
    model = gemma4_moe()
    config = {k: v for k, v in model.config.items() if k not in _OF_FULL_LAYERS}
    own = {"head_dim": 32, "num_key_value_heads": 1}
    config["per_layer_config"] = {f"0{i}": own for i in (1, 3, 5)}
    return TinyModel("tiny-gemma4-saved", config, model.tensors)


def _weight(name: str, shape: tuple[int, ...]) -> Array:
    seed = f"gemma4/{name}"
    if name.endswith(("norm.weight", "norm_1.weight", "norm_2.weight", "scale", "scalar")):
        gain = 8.0 if name.endswith("router.scale") else 1.0
        return np.float32(gain) * tiny.uniform(seed, shape, 0.3, 0.8)
    if "embed_tokens" in name:
        return tiny.uniform(seed, shape, 1.0)
    if len(shape) == 1:
        return tiny.uniform(seed, shape, 0.3)
    return tiny.uniform(seed, shape, 1.5 * (3.0 / shape[-1]) ** 0.5)


def _shapes(config: dict[str, object]) -> dict[str, tuple[int, ...]]:
    """Of every tensor, by name."""
    size = TinyModel("", config, {}).size
    hidden, n_layers, width = (
        size(x) for x in ("hidden_size", "num_hidden_layers", "hidden_size_per_layer_input")
    )
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (size("vocab_size"), hidden),
        "model.norm.weight": (hidden,),
    }
    if width:
        shapes["model.embed_tokens_per_layer.weight"] = (
            size("vocab_size_per_layer_input"),
            n_layers * width,
        )
        shapes["model.per_layer_model_projection.weight"] = (n_layers * width, hidden)
        shapes["model.per_layer_projection_norm.weight"] = (width,)
    for layer in range(n_layers):
        parts = _attention(config, layer) | _mlp(config, layer)
        norms = ("input", "post_attention", "pre_feedforward", "post_feedforward")
        parts |= {f"{name}_layernorm.weight": (hidden,) for name in norms}
        parts["layer_scalar"] = (1,)
        if width:
            parts["per_layer_input_gate.weight"] = (width, hidden)
            parts["per_layer_projection.weight"] = (hidden, width)
            parts["post_per_layer_input_norm.weight"] = (hidden,)
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    return shapes


def _is_shared(config: dict[str, object], layer: int) -> bool:
    size = TinyModel("", config, {}).size
    return layer >= size("num_hidden_layers") - size("num_kv_shared_layers")


def _attention(config: dict[str, object], layer: int) -> dict[str, tuple[int, ...]]:
    size, types = TinyModel("", config, {}).size, config["layer_types"]
    assert isinstance(types, list)
    hidden, is_full = size("hidden_size"), types[layer] == _FULL
    dim = size("global_head_dim" if is_full else "head_dim")
    same = is_full and bool(config["attention_k_eq_v"])
    own = same and config["num_global_key_value_heads"] is not None
    n_kv = size("num_global_key_value_heads" if own else "num_key_value_heads") * dim
    n_q = size("num_attention_heads") * dim
    rows = {"q": n_q, **({} if _is_shared(config, layer) else {"k": n_kv, "v": n_kv})}
    if same:
        rows.pop("v", None)
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
    size = TinyModel("", config, {}).size
    hidden, inner = size("hidden_size"), size("intermediate_size")
    inner *= 2 if config["use_double_wide_mlp"] and _is_shared(config, layer) else 1
    found: dict[str, tuple[int, ...]] = {
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
    }
    if not config["enable_moe_block"]:
        return found
    n, expert = size("num_experts"), size("moe_intermediate_size")
    norms = ("post_feedforward_layernorm_1", "pre_feedforward_layernorm_2")
    return {
        **found,
        **{f"{name}.weight": (hidden,) for name in (*norms, "post_feedforward_layernorm_2")},
        "router.proj.weight": (n, hidden),
        "router.scale": (hidden,),
        "router.per_expert_scale": (n,),
        "experts.gate_up_proj": (n, 2 * expert, hidden),
        "experts.down_proj": (n, hidden, expert),
    }
