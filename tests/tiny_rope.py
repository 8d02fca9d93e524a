"""Tiny random models whose ropes, norms of queries and keys, or fused tensors are their own. No
constant has the value that changes nothing; prompts go beyond windows and original contexts."""

from __future__ import annotations

from dataclasses import replace

from tests import tiny
from tests.tiny import TinyModel
from tests.tiny_kin import SLIDES, of_llama, without

_LONG = {
    "type": "longrope",
    "short_factor": [1.0, 1.1, 1.3, 1.6, 2.0, 2.5],
    "long_factor": [1.1, 1.7, 2.6, 4.0, 6.5, 9.0],
}
_GLM: dict[str, object] = {
    "attention_bias": True,
    "partial_rotary_factor": 0.5,
    "pad_token_id": 2,
}


def olmo2(**overrides: object) -> TinyModel:
    """Norms after attention and MLP alone; of q and k across all heads."""
    names: dict[str, object] = {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"}
    model = tiny.llama("tiny-olmo2", **(names | overrides))
    norms = {}
    for layer in range(model.size("num_hidden_layers")):
        part = f"model.layers.{layer}"
        sizes = {f"{part}.self_attn.q_norm.weight": 64, f"{part}.self_attn.k_norm.weight": 32}
        sizes[f"{part}.post_feedforward_layernorm.weight"] = 64
        norms |= {key: tiny.uniform(f"olmo/{key}", (n,), 0.3, 1.0) for key, n in sizes.items()}
    return without(replace(model, tensors={**model.tensors, **norms}), "input_layernorm.weight")


def olmo3(**overrides: object) -> TinyModel:
    """OLMo 2 with windows in three layers of four, YaRN in the fourth."""
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "attention_factor": 1.2,
        "beta_fast": 2.0,
        "beta_slow": 0.25,
        "rope_theta": 20000.0,
    }
    own: dict[str, object] = {
        "architectures": ["Olmo3ForCausalLM"],
        "model_type": "olmo3",
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "layer_types": SLIDES,
        "rope_parameters": {
            "full_attention": yarn,
            "sliding_attention": {"rope_type": "default", "rope_theta": 5000.0},
        },
    }
    return replace(olmo2(**(own | overrides)), name="tiny-olmo3")


def ministral3(**overrides: object) -> TinyModel:
    """YaRN with two mscales, queries that grow, windows."""
    rope = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 16,
        "beta_fast": 2.0,
        "beta_slow": 0.25,
        "mscale": 1.0,
        "mscale_all_dim": 0.4,
        "llama_4_scaling_beta": 0.3,
    }
    own: dict[str, object] = {"rope_parameters": rope, "sliding_window": 24}
    return of_llama("Ministral3ForCausalLM", "ministral3", **(own | overrides))


def hunyuan_dense(**overrides: object) -> TinyModel:
    """Norms of heads after rope, theta grown by alpha, all biases of attention."""
    rope = {"type": "dynamic", "alpha": 50.0, "factor": 1.0}
    own: dict[str, object] = {"rope_scaling": rope, "attention_bias": True}
    model = of_llama("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", **(own | overrides))
    norms = {
        key: tiny.uniform(f"hunyuan/{key}", (16,), 0.3, 1.0)
        for layer in range(model.size("num_hidden_layers"))
        for key in (
            f"model.layers.{layer}.self_attn.query_layernorm.weight",
            f"model.layers.{layer}.self_attn.key_layernorm.weight",
        )
    }
    return replace(model, tensors={**model.tensors, **norms})


def minicpm(**overrides: object) -> TinyModel:
    """Three scales, longrope. What is longer than the model's context takes the long factors."""
    rope = _LONG | {"short_factor": [1.2] * 8, "long_factor": [1 + i / 2 for i in range(8)]}
    own: dict[str, object] = {
        "scale_emb": 3,
        "scale_depth": 0.9,
        "dim_model_base": 40,
        "max_position_embeddings": 64,
        "rope_scaling": {**rope, "original_max_position_embeddings": 64},
    }
    return of_llama("MiniCPMForCausalLM", "minicpm", **(own | overrides))


def phi3(**overrides: object) -> TinyModel:
    """Two fused tensors, windows, longrope in three quarters of each head."""
    own: dict[str, object] = {
        "rope_scaling": _LONG,
        "original_max_position_embeddings": 32,
        "partial_rotary_factor": 0.75,
        "sliding_window": 24,
        "pad_token_id": 2,
    }
    model = of_llama("Phi3ForCausalLM", "phi3", **(own | overrides))
    return tiny.fused(tiny.fused(model, "self_attn", "qkv"), "mlp", "gate_up")


def glm(**overrides: object) -> TinyModel:
    """Neighbours in half of each head turn; biases of q, k and v; gate and up in one tensor."""
    model = of_llama("GlmForCausalLM", "glm", **(_GLM | overrides))
    return tiny.fused(without(model, "o_proj.bias"), "mlp", "gate_up")


def glm4(**overrides: object) -> TinyModel:
    """GLM with norms after attention and MLP, too."""
    model, norms = of_llama("Glm4ForCausalLM", "glm4", **(_GLM | overrides)), {}
    model = tiny.fused(without(model, "o_proj.bias"), "mlp", "gate_up")
    for layer in range(model.size("num_hidden_layers")):
        for name in ("post_self_attn_layernorm", "post_mlp_layernorm"):
            key = f"model.layers.{layer}.{name}.weight"
            norms[key] = tiny.uniform(f"glm4/{key}", (64,), 0.3, 1.0)
    return replace(model, tensors={**model.tensors, **norms})
