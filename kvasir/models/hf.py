"""Readers of config.json, one for each family; fields and defaults are ``transformers``'."""

from __future__ import annotations

from dataclasses import replace

from kvasir.models.keys import Keys
from kvasir.models.spec import (
    MAX_EXPERTS,
    MAX_HEAD_DIM,
    MAX_LAYERS,
    BlockSpec,
    ExpertConfig,
    ModelConfig,
    RopeConfig,
)

_ACTS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ROPE_TYPES = ("default", "linear", "llama3")


def read_llama(keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
    """Llama 2/3, SmolLM, TinyLlama."""
    keys.refuse("sliding_window")
    config = _common(keys, block, family)
    bias, mlp_bias = keys.flag("attention_bias", False), keys.flag("mlp_bias", False)
    act = _act(keys, "hidden_act", "silu")
    block = replace(block, act=act, qkv_bias=bias, o_bias=bias, mlp_bias=mlp_bias)
    return replace(config, block=block)


def read_mistral(keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
    """Llama with a sliding window, 4096 tokens unless the config says otherwise (null: none)."""
    config = _common(keys, block, family, kv_heads=8)
    block = replace(block, act=_act(keys, "hidden_act", "silu"))
    return replace(config, block=block, windows=_same_window(keys, config.n_layers, 4096))


def read_mixtral(keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
    config = _common(keys, block, family, kv_heads=8, norm_eps=1e-5, theta=1e6)
    n_experts = keys.integer("num_local_experts", 8, most=MAX_EXPERTS)
    experts = ExpertConfig(n_experts, keys.integer("num_experts_per_tok", 2))
    if experts.top_k > experts.n_experts:
        raise keys.error(
            "num_experts_per_tok", experts.top_k, f"at most num_local_experts = {experts.n_experts}"
        )
    block = replace(block, act=_act(keys, "hidden_act", "silu"))
    return replace(
        config, block=block, experts=experts, windows=_same_window(keys, config.n_layers)
    )


def read_qwen2(keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
    """Qwen2 and Qwen2.5: llama with biases of q, k and v."""
    config = _common(keys, block, family, kv_heads=32)
    block = replace(block, act=_act(keys, "hidden_act", "silu"))
    return replace(config, block=block, windows=_upper_windows(keys, config.n_layers))


def read_qwen3(keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
    """Qwen3: norms of each query and key head instead of biases."""
    config = _common(keys, block, family, kv_heads=32, head_dim=128)
    bias = keys.flag("attention_bias", False)
    block = replace(block, act=_act(keys, "hidden_act", "silu"), qkv_bias=bias, o_bias=bias)
    return replace(config, block=block, windows=_upper_windows(keys, config.n_layers))


def read_gemma3(keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
    keys.refuse("use_bidirectional_attention", False)
    config = _common(keys, block, family, kv_heads=4, head_dim=256, theta=1e6, tied=True)
    bias = keys.flag("attention_bias", False)
    block = replace(
        block, act=_act(keys, "hidden_activation", "gelu_pytorch_tanh"), qkv_bias=bias, o_bias=bias
    )
    window = keys.integer("sliding_window", 4096)
    return replace(
        config,
        block=block,
        windows=tuple(
            window if sliding else 0 for sliding in _gemma_sliding(keys, config.n_layers)
        ),
        window_rope=_gemma_window_rope(keys),
        attention_scale=keys.number("query_pre_attn_scalar", 256.0, least=1.0) ** -0.5,
        attention_softcap=_softcap(keys, "attn_logit_softcapping"),
        final_softcap=_softcap(keys, "final_logit_softcapping"),
        embed_scale=config.hidden_size**0.5,
    )


def _common(
    keys: Keys,
    block: BlockSpec,
    family: str,
    *,
    kv_heads: int | None = None,
    head_dim: int | None = None,
    norm_eps: float = 1e-6,
    theta: float = 1e4,
    tied: bool = False,
) -> ModelConfig:
    keys.refuse("quantization_config")
    hidden, heads = keys.integer("hidden_size"), keys.integer("num_attention_heads")
    kv_heads = keys.integer("num_key_value_heads", kv_heads or heads)
    if heads % kv_heads:
        raise keys.error(
            "num_key_value_heads", kv_heads, f"a divisor of num_attention_heads = {heads}"
        )
    if head_dim is None and not keys.has("head_dim") and hidden % heads:
        raise keys.error("hidden_size", hidden, f"a multiple of num_attention_heads = {heads}")
    dim = keys.integer("head_dim", head_dim or hidden // heads, most=MAX_HEAD_DIM)
    if dim % 2:
        raise keys.error("head_dim", dim, "an even number")
    return ModelConfig(
        family=family,
        kind="hf",
        block=block,
        vocab_size=keys.integer("vocab_size"),
        hidden_size=hidden,
        ffn_size=keys.integer("intermediate_size"),
        n_layers=keys.integer("num_hidden_layers", most=MAX_LAYERS),
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=dim,
        max_positions=keys.integer("max_position_embeddings"),
        norm_eps=keys.number("rms_norm_eps", norm_eps),
        attention_scale=dim**-0.5,
        rope=_rope(keys, theta),
        tied=keys.flag("tie_word_embeddings", tied),
    )


def _act(keys: Keys, name: str, default: str) -> str:
    return _ACTS[keys.word(name, _ACTS, default)]


def _softcap(keys: Keys, name: str) -> float:
    """0 when the field is missing or null."""
    return keys.number(name, 0.0)


def _same_window(keys: Keys, n_layers: int, default: int = 0) -> tuple[int, ...]:
    """One window for every layer; none when the field is null, ``default`` when it is missing."""
    if keys.is_null("sliding_window"):
        return ()
    window = keys.integer("sliding_window", default, least=0)
    return (window,) * n_layers if window else ()


def _upper_windows(keys: Keys, n_layers: int) -> tuple[int, ...]:
    """Qwen: a window, where it is used at all, in the layers from ``max_window_layers`` on."""
    if not keys.flag("use_sliding_window", False) or keys.is_null("sliding_window"):
        return ()
    window = keys.integer("sliding_window", 4096)
    first = keys.integer("max_window_layers", 28, least=0)
    if keys.has("layer_types"):
        types = keys.words("layer_types", _LAYER_TYPES, n_layers)
        return tuple(window if kind == "sliding_attention" else 0 for kind in types)
    return tuple(window if layer >= first else 0 for layer in range(n_layers))


def _gemma_sliding(keys: Keys, n_layers: int) -> tuple[bool, ...]:
    """Which layers slide: said for each, or all but every ``sliding_window_pattern``-th."""
    if keys.has("layer_types"):
        types = keys.words("layer_types", _LAYER_TYPES, n_layers)
        return tuple(kind == "sliding_attention" for kind in types)
    pattern = keys.integer("sliding_window_pattern", 6)
    return tuple((layer + 1) % pattern != 0 for layer in range(n_layers))


def _gemma_window_rope(keys: Keys) -> RopeConfig:
    per_type = keys.table("rope_parameters")
    nested = per_type.table("sliding_attention") if per_type is not None else None
    if nested is not None:
        return _rope_of(nested, nested.number("rope_theta", 1e4, least=1.0))
    return RopeConfig(keys.number("rope_local_base_freq", 1e4, least=1.0))


def _rope(keys: Keys, default_theta: float) -> RopeConfig:
    """``rope_scaling`` with ``rope_theta`` beside it, or the newer ``rope_parameters``."""
    if keys.number("partial_rotary_factor", 1.0) != 1.0:
        raise keys.error("partial_rotary_factor", keys.raw("partial_rotary_factor"), "1.0")
    theta = keys.number("rope_theta", default_theta, least=1.0)
    table = keys.table("rope_parameters") or keys.table("rope_scaling")
    if table is None:
        return RopeConfig(theta)
    table = table.table("full_attention") or table
    return _rope_of(table, table.number("rope_theta", theta, least=1.0))


def _rope_of(table: Keys, theta: float) -> RopeConfig:
    name = "rope_type" if table.has("rope_type") else "type"
    kind = table.word(name, _ROPE_TYPES, "default")
    if kind == "default":
        return RopeConfig(theta)
    factor = table.number("factor", least=1.0)
    if kind == "linear":
        return RopeConfig(theta, "linear", factor)
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    if high <= low:
        raise table.error("high_freq_factor", high, f"more than low_freq_factor = {low:g}")
    return RopeConfig(
        theta,
        "llama3",
        factor,
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=table.integer("original_max_position_embeddings"),
    )
