"""Tiny random models of the relatives of llama, as ``tests.tiny`` has them of the first families.
No constant has the value that changes nothing."""

from __future__ import annotations

from dataclasses import replace

from tests import tiny
from tests.tiny import TinyModel

SLIDES = ["sliding_attention"] * 3 + ["full_attention"]


def seed_oss(**overrides: object) -> TinyModel:
    """Biases of q, k and v, heads wider than hidden / heads."""
    model = of_llama("SeedOssForCausalLM", "seed_oss", head_dim=32, attention_bias=True)
    model = replace(model, config={**model.config, "attention_out_bias": False, **overrides})
    return without(model, "o_proj.bias")


def granite(**overrides: object) -> TinyModel:
    """Four multipliers."""
    multipliers: dict[str, object] = {
        "attention_multiplier": 0.15,
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.4,
        "logits_scaling": 1.7,
    }
    return of_llama("GraniteForCausalLM", "granite", **(multipliers | overrides))


def smollm3(**overrides: object) -> TinyModel:
    """The fourth of five layers has no rope."""
    layers: dict[str, object] = {
        "num_hidden_layers": 5,
        "no_rope_layers": [1, 1, 1, 0, 1],
        "pad_token_id": 2,
    }
    return of_llama("SmolLM3ForCausalLM", "smollm3", **(layers | overrides))


def ernie45(**overrides: object) -> TinyModel:
    """Neighbours are rotated; biases everywhere."""
    config: dict[str, object] = {"use_bias": True, "head_dim": 32, "pad_token_id": 2}
    config |= {"attention_bias": True, "mlp_bias": True}
    model = of_llama("Ernie4_5ForCausalLM", "ernie4_5", **(config | overrides))
    gone = ("attention_bias", "mlp_bias")
    return replace(model, config={k: v for k, v in model.config.items() if k not in gone})


def ministral(**overrides: object) -> TinyModel:
    """Three layers of four slide."""
    layers: dict[str, object] = {
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "layer_types": SLIDES,
    }
    return of_llama("MinistralForCausalLM", "ministral", **(layers | overrides))


def qwen3_moe(**overrides: object) -> TinyModel:
    """Four experts narrower than a dense layer, two for each token."""
    sizes: dict[str, object] = {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "num_hidden_layers": 2,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    }
    model = tiny.qwen3(**(sizes | overrides))
    shapes: dict[str, tuple[int, int, float]] = {}
    for layer in range(2):
        part = f"model.layers.{layer}.mlp"
        # Far apart, so that rounding seldom changes the choice of experts.
        shapes[f"{part}.gate.weight"] = (4, 64, 4.0)
        for expert in range(4):
            shapes[f"{part}.experts.{expert}.gate_proj.weight"] = (32, 64, 1.0)
            shapes[f"{part}.experts.{expert}.up_proj.weight"] = (32, 64, 1.0)
            shapes[f"{part}.experts.{expert}.down_proj.weight"] = (64, 32, 1.0)
    made = {
        name: tiny.uniform(f"qwen3-moe/{name}", (n, k), gain * (3.0 / k) ** 0.5)
        for name, (n, k, gain) in shapes.items()
    }
    dense = ("mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight")
    model = without(model, *dense)
    return replace(model, name="tiny-qwen3-moe", tensors={**model.tensors, **made})


def exaone4(**overrides: object) -> TinyModel:
    """Norms of heads and after attention and MLP alone; the full layer of four has no rope."""
    layers: dict[str, object] = {
        "num_hidden_layers": 4,
        "sliding_window": 8,
        "layer_types": SLIDES,
    }
    model = of_llama("Exaone4ForCausalLM", "exaone4", **(layers | overrides))
    norms = {}
    for layer in range(4):
        part = f"model.layers.{layer}"
        sizes = {f"{part}.self_attn.{head}_norm.weight": 16 for head in ("q", "k")}
        sizes[f"{part}.post_feedforward_layernorm.weight"] = 64
        norms |= {key: tiny.uniform(f"exaone4/{key}", (n,), 0.3, 1.0) for key, n in sizes.items()}
    return without(replace(model, tensors={**model.tensors, **norms}), "input_layernorm.weight")


def gemma2(**overrides: object) -> TinyModel:
    """Gemma 3 without norms of heads, with one rope."""
    own: dict[str, object] = {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        "rope_theta": 20000.0,
        "rope_scaling": None,
    }
    model = tiny.gemma3(**(own | overrides))
    config = {k: v for k, v in model.config.items() if k != "rope_local_base_freq"}
    return without(replace(model, name="tiny-gemma2", config=config), "_norm.weight")


def gemma(**overrides: object) -> TinyModel:
    """Norms of 1 + weight, embeddings times the root of their width, GELU."""
    sizes: dict[str, object] = {"head_dim": 32, "tie_word_embeddings": True}
    model = of_llama("GemmaForCausalLM", "gemma", **(sizes | overrides))
    config = {**model.config, "hidden_act": "gelu_pytorch_tanh"}
    shifted = {k: x - 1 if k.endswith("norm.weight") else x for k, x in model.tensors.items()}
    return replace(model, config=config, tensors=shifted)


def without(model: TinyModel, *ends: str) -> TinyModel:
    """The model less the tensors whose names end so."""
    kept = {name: x for name, x in model.tensors.items() if not name.endswith(ends)}
    return replace(model, tensors=kept)


def of_llama(architecture: str, kind: str, **overrides: object) -> TinyModel:
    return tiny.llama(f"tiny-{kind}", architectures=[architecture], model_type=kind, **overrides)
