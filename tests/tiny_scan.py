"""Tiny random models with linear scans. No constant has the value that changes nothing."""

from __future__ import annotations

from collections.abc import Callable

from tests import tiny
from tests.tiny import Array, TinyModel, uniform

Shapes = dict[str, tuple[int, ...]]


def made(name: str, config: dict[str, object], shapes: Shapes, embed: str) -> TinyModel:
    """With a tensor for each shape."""
    tensors = {key: _tensor(f"{name}/{key}", shape) for key, shape in shapes.items()}
    hidden = config["hidden_size"]
    assert isinstance(hidden, int)
    tensors[embed] = uniform(f"{name}/embed", (tiny.VOCAB, hidden), 1.0)
    return TinyModel(name, config, tensors)


def _tensor(name: str, shape: tuple[int, ...]) -> Array:
    """A norm, time steps from a fiftieth to two, rates from a half to four; or what gives outputs
    of about the size of its inputs, and more."""
    if name.endswith("dt_bias"):
        return uniform(name, shape, 2.5, -1.5)
    if name.endswith("A_log"):
        return uniform(name, shape, 1.0, 0.4)
    if name.endswith("conv1d.bias"):
        return uniform(name, shape, 0.3)
    if name.endswith("norm.weight") and "qwen3" in name and "linear_attn" not in name:
        return uniform(name, shape, 0.3)  # one more
    routers = ("router", "mlp.gate.", "mixer.gate.", "moe.gate.weight")
    if any(
        part in name for part in routers
    ):  # far apart, so that rounding seldom changes the choice of experts
        return uniform(name, shape, 0.8)
    if len(shape) == 1:
        return uniform(name, shape, 0.3, 1.0)
    gain = 1.0 if "qwen3" in name else 1.5  # beside it norms of one and more
    return uniform(name, shape, gain * (3.0 / shape[-1]) ** 0.5)


def ssd_shapes(part: str, hidden: int, heads: int, dim: int, groups: int, state: int) -> Shapes:
    """Of a Mamba-2 mixer with a convolution of four taps."""
    inner = heads * dim
    columns = inner + 2 * groups * state
    return {
        f"{part}.in_proj.weight": (inner + columns + heads, hidden),
        f"{part}.conv1d.weight": (columns, 1, 4),
        f"{part}.conv1d.bias": (columns,),
        **{f"{part}.{x}": (heads,) for x in ("dt_bias", "A_log", "D")},
        f"{part}.norm.weight": (inner,),
        f"{part}.out_proj.weight": (hidden, inner),
    }


def mamba2(**overrides: object) -> TinyModel:
    """Four heads in two groups; steps that are bounded on both sides."""
    hidden, heads, dim, groups, state = 64, 4, 32, 2, 24
    config: dict[str, object] = {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "hidden_size": hidden,
        "num_hidden_layers": 3,
        "num_heads": heads,
        "head_dim": dim,
        "n_groups": groups,
        "state_size": state,
        "conv_kernel": 4,
        "expand": 2,
        "use_bias": False,
        "use_conv_bias": True,
        "layer_norm_epsilon": 1e-4,
        "time_step_limit": [0.0, float("inf")],
        "chunk_size": 16,
        "vocab_size": tiny.VOCAB,
        "tie_word_embeddings": False,
        "bos_token_id": tiny.BOS,
        "eos_token_id": tiny.EOS,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        **overrides,
    }
    groups = int(str(config["n_groups"]))
    shapes: Shapes = {"backbone.norm_f.weight": (hidden,), "lm_head.weight": (tiny.VOCAB, hidden)}
    for layer in range(3):
        part = f"backbone.layers.{layer}"
        shapes[f"{part}.norm.weight"] = (hidden,)
        shapes |= ssd_shapes(f"{part}.mixer", hidden, heads, dim, groups, state)
    if not config["use_conv_bias"]:
        shapes = {key: shape for key, shape in shapes.items() if not key.endswith("conv1d.bias")}
    return made("tiny-mamba2", config, shapes, "backbone.embeddings.weight")


MIXERS = ["mamba", "attention", "mamba", "mamba"]


GRANITE = (64, 4, 32, 1, 16)
"""Width; heads of scans, their size, groups, rows of a state."""


def _granite_shapes(config: dict[str, object], is_sparse: bool) -> Shapes:
    (hidden, *sizes), n_experts, inner, shared = GRANITE, 5, 32, 64
    shapes: Shapes = {"model.norm.weight": (hidden,)}
    for layer, mixer in enumerate(MIXERS):
        part = f"model.layers.{layer}"
        shapes |= {f"{part}.{x}_layernorm.weight": (hidden,) for x in ("input", "post_attention")}
        shapes[f"{part}.shared_mlp.input_linear.weight"] = (2 * shared, hidden)
        shapes[f"{part}.shared_mlp.output_linear.weight"] = (hidden, shared)
        if is_sparse:
            experts = f"{part}.block_sparse_moe"
            shapes[f"{experts}.router.layer.weight"] = (n_experts, hidden)
            shapes[f"{experts}.input_linear.weight"] = (n_experts, 2 * inner, hidden)
            shapes[f"{experts}.output_linear.weight"] = (n_experts, hidden, inner)
        if mixer == "mamba":
            shapes |= ssd_shapes(f"{part}.mamba", hidden, *sizes)
            continue
        for name, n in (("q", 64), ("k", 32), ("v", 32), ("o", 64)):
            shapes[f"{part}.self_attn.{name}_proj.weight"] = (n, 64)
            if config["attention_bias"]:
                shapes[f"{part}.self_attn.{name}_proj.bias"] = (n,)
    return shapes


def granite_hybrid(**overrides: object) -> TinyModel:
    """Attention in the second of four layers; two of five experts beside an MLP."""
    hidden, heads, dim, groups, state = GRANITE
    config: dict[str, object] = {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "hidden_size": hidden,
        "intermediate_size": 32,
        "shared_intermediate_size": 64,
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "num_hidden_layers": len(MIXERS),
        "layer_types": MIXERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "attention_multiplier": 0.3,
        "embedding_multiplier": 1.5,
        "residual_multiplier": 0.7,
        "logits_scaling": 1.7,
        "position_embedding_type": "nope",
        "mamba_n_heads": heads,
        "mamba_d_head": dim,
        "mamba_n_groups": groups,
        "mamba_d_state": state,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "mamba_chunk_size": 16,
        "rms_norm_eps": 1e-4,
        "rope_theta": 20000.0,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 512,
        "vocab_size": tiny.VOCAB,
        "tie_word_embeddings": True,
        "bos_token_id": tiny.BOS,
        "eos_token_id": tiny.EOS,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        **overrides,
    }
    shapes = _granite_shapes(config, bool(config["num_local_experts"]))
    return made("tiny-granite-hybrid", config, shapes, "model.embed_tokens.weight")


def granite_hybrid_dense(**overrides: object) -> TinyModel:
    """Without experts."""
    return granite_hybrid(**({"num_local_experts": 0, "intermediate_size": 64} | overrides))


DELTA = (64, 2, 24, 4, 32)
"""Width; heads of keys, their size, heads of values, their size."""


def _delta_config(name: str, overrides: dict[str, object]) -> dict[str, object]:
    """Attention in the second of four layers; a rope in a quarter of each head."""
    hidden, keys, key_dim, values, value_dim = DELTA
    return {
        "architectures": [f"{name}ForCausalLM"],
        "hidden_size": hidden,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "layer_types": ["full_attention" if i == 1 else "linear_attention" for i in range(4)],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "linear_num_key_heads": keys,
        "linear_key_head_dim": key_dim,
        "linear_num_value_heads": values,
        "linear_value_head_dim": value_dim,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 20000.0,
            "partial_rotary_factor": 0.25,
        },
        "partial_rotary_factor": 0.25,
        "rms_norm_eps": 1e-4,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 512,
        "vocab_size": tiny.VOCAB,
        "tie_word_embeddings": False,
        "bos_token_id": tiny.BOS,
        "eos_token_id": tiny.EOS,
        "pad_token_id": 2,
        "torch_dtype": "float32",
        **overrides,
    }


def _delta_shapes(part: str, attends: bool) -> Shapes:
    """What both families have in a layer, but for what the delta net reads."""
    hidden, keys, key_dim, values, value_dim = DELTA
    shapes: Shapes = {
        f"{part}.{x}_layernorm.weight": (hidden,) for x in ("input", "post_attention")
    }
    if attends:
        for name, n in (("q", 256), ("k", 64), ("v", 64)):
            shapes[f"{part}.self_attn.{name}_proj.weight"] = (n, hidden)
        shapes[f"{part}.self_attn.o_proj.weight"] = (hidden, 128)
        return shapes | {f"{part}.self_attn.{x}_norm.weight": (32,) for x in "qk"}
    net, inner = f"{part}.linear_attn", values * value_dim
    shapes[f"{net}.conv1d.weight"] = (2 * keys * key_dim + inner, 1, 4)
    shapes |= {f"{net}.{x}": (values,) for x in ("dt_bias", "A_log")}
    shapes[f"{net}.norm.weight"] = (value_dim,)
    shapes[f"{net}.out_proj.weight"] = (hidden, inner)
    return shapes


def _gated_mlp(part: str, inner: int) -> Shapes:
    shapes: Shapes = {f"{part}.{x}_proj.weight": (inner, DELTA[0]) for x in ("gate", "up")}
    return shapes | {f"{part}.down_proj.weight": (DELTA[0], inner)}


def _mixture(part: str) -> Shapes:
    shapes: Shapes = {f"{part}.gate.weight": (6, DELTA[0])}
    for expert in range(6):
        shapes |= _gated_mlp(f"{part}.experts.{expert}", 32)
    shapes[f"{part}.shared_expert_gate.weight"] = (1, DELTA[0])
    return shapes | _gated_mlp(f"{part}.shared_expert", 64)


def qwen3_next(**overrides: object) -> TinyModel:
    """Two of six experts, and one with a gate that sees every token."""
    own: dict[str, object] = {
        "model_type": "qwen3_next",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
    config = _delta_config("Qwen3Next", own | overrides)
    hidden, keys, key_dim, values, value_dim = DELTA
    shapes: Shapes = {"model.norm.weight": (hidden,), "lm_head.weight": (tiny.VOCAB, hidden)}
    for layer in range(4):
        part = f"model.layers.{layer}"
        shapes |= _delta_shapes(part, layer == 1)
        if layer != 1:
            n = 2 * keys * key_dim + 2 * values * value_dim
            shapes[f"{part}.linear_attn.in_proj_qkvz.weight"] = (n, hidden)
            shapes[f"{part}.linear_attn.in_proj_ba.weight"] = (2 * values, hidden)
        shapes |= _mixture(f"{part}.mlp")
    return made("tiny-qwen3-next", config, shapes, "model.embed_tokens.weight")


def _apart(net: str) -> Shapes:
    """What a delta net of Qwen3.5 reads."""
    hidden, keys, key_dim, values, value_dim = DELTA
    inner = values * value_dim
    shapes: Shapes = {f"{net}.in_proj_{x}.weight": (values, hidden) for x in "ab"}
    shapes[f"{net}.in_proj_qkv.weight"] = (2 * keys * key_dim + inner, hidden)
    return shapes | {f"{net}.in_proj_z.weight": (inner, hidden)}


def _qwen3_5(name: str, config: dict[str, object], mlp: Callable[[str], Shapes]) -> TinyModel:
    hidden = DELTA[0]
    shapes: Shapes = {"model.norm.weight": (hidden,), "lm_head.weight": (tiny.VOCAB, hidden)}
    for layer in range(4):
        part = f"model.layers.{layer}"
        shapes |= _delta_shapes(part, layer == 1) | mlp(f"{part}.mlp")
        shapes |= _apart(f"{part}.linear_attn") if layer != 1 else {}
    return made(name, config, shapes, "model.embed_tokens.weight")


def qwen3_5(**overrides: object) -> TinyModel:
    """With an MLP."""
    config = _delta_config("Qwen3_5", {"model_type": "qwen3_5_text", **overrides})
    return _qwen3_5("tiny-qwen3-5", config, lambda part: _gated_mlp(part, 96))


def qwen3_5_moe(**overrides: object) -> TinyModel:
    """Two of six experts, and one with a gate that sees every token."""
    own: dict[str, object] = {
        "model_type": "qwen3_5_moe_text",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 64,
    }
    config = _delta_config("Qwen3_5Moe", own | overrides)
    return _qwen3_5("tiny-qwen3-5-moe", config, _mixture)
