"""Readers of config.json; fields and defaults are ``transformers``'."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvasir.models.keys import HeadFields, Keys, read_experts, read_heads
from kvasir.models.spec import MAX_LAYERS, BlockSpec, ModelConfig, RopeConfig

_ACTS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
_LAYER_TYPES = ("full_attention", "sliding_attention")
_ROPE_TYPES = ("default", "linear", "llama3")
ATTENTION_BIAS = (("attention_bias", "qkv_bias"), ("attention_bias", "o_bias"))
LLAMA_BIASES = (*ATTENTION_BIAS, ("mlp_bias", "mlp_bias"))
_HEADS = HeadFields("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")

Windows = Callable[[Keys, int], tuple[int, ...]]
"""Of a config and a number of layers: ``ModelConfig.windows``."""


def no_windows(keys: Keys, n_layers: int) -> tuple[int, ...]:
    keys.refuse("sliding_window")
    return ()


@dataclass(frozen=True, slots=True)
class Decoder:
    """Reads a llama-like model. Fields are what its class in ``transformers`` has where its config
    says nothing."""

    act: str = "silu"
    act_field: str = "hidden_act"
    biases: tuple[tuple[str, str], ...] = ()
    """Fields of the config, each with a flag of ``BlockSpec`` that it sets."""
    kv_heads: int | None = None
    """None: as many as query heads."""
    head_dim: int | None = None
    """None: the width of a token is shared by the heads."""
    norm_eps: float = 1e-6
    theta: float = 1e4
    tied: bool = False
    windows: Windows = no_windows

    def __call__(self, keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
        keys.refuse("quantization_config")
        n_layers = keys.integer("num_hidden_layers", most=MAX_LAYERS)
        hidden, heads, kv_heads, dim = read_heads(keys, _HEADS, self.kv_heads, self.head_dim)
        flags = {flag: keys.flag(name, False) for name, flag in self.biases}
        act = _ACTS[keys.word(self.act_field, _ACTS, self.act)]
        return ModelConfig(
            family=family,
            kind="hf",
            block=replace(block, act=act, **flags),
            vocab_size=keys.integer("vocab_size"),
            hidden_size=hidden,
            ffn_size=keys.integer("intermediate_size"),
            n_layers=n_layers,
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=dim,
            max_positions=keys.integer("max_position_embeddings"),
            norm_eps=keys.number("rms_norm_eps", self.norm_eps),
            attention_scale=dim**-0.5,
            rope=_rope(keys, self.theta),
            windows=self.windows(keys, n_layers),
            tied=keys.flag("tie_word_embeddings", self.tied),
        )


def read_mixtral(keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
    read = Decoder(kv_heads=8, norm_eps=1e-5, theta=1e6, windows=same_window)
    config = read(keys, block, family)
    experts = read_experts(keys, "num_local_experts", "num_experts_per_tok", (8, 2))
    return replace(config, experts=experts)


def read_gemma3(keys: Keys, block: BlockSpec, family: str) -> ModelConfig:
    keys.refuse("use_bidirectional_attention", False)
    read = Decoder(
        act="gelu_pytorch_tanh",
        act_field="hidden_activation",
        biases=ATTENTION_BIAS,
        kv_heads=4,
        head_dim=256,
        theta=1e6,
        tied=True,
        windows=_gemma_windows,
    )
    config = read(keys, block, family)
    return replace(
        config,
        window_rope=_gemma_window_rope(keys),
        attention_scale=keys.number("query_pre_attn_scalar", 256.0, least=1.0) ** -0.5,
        attention_softcap=keys.number("attn_logit_softcapping", 0.0),
        final_softcap=keys.number("final_logit_softcapping", 0.0),
        embed_scale=config.hidden_size**0.5,
    )


def same_window(keys: Keys, n_layers: int, default: int = 0) -> tuple[int, ...]:
    """One window for every layer; none when the field is null, ``default`` when it is missing."""
    if keys.is_null("sliding_window"):
        return ()
    window = keys.integer("sliding_window", default, least=0)
    return (window,) * n_layers if window else ()


def upper_windows(keys: Keys, n_layers: int) -> tuple[int, ...]:
    """Qwen: a window, where it is used at all, in the layers from ``max_window_layers`` on."""
    if not keys.flag("use_sliding_window", False) or keys.is_null("sliding_window"):
        return ()
    window = keys.integer("sliding_window", 4096)
    first = keys.integer("max_window_layers", 28, least=0)
    return _windows(keys, window, [layer >= first for layer in range(n_layers)])


def _windows(keys: Keys, window: int, slides: Sequence[bool]) -> tuple[int, ...]:
    """Of each layer; whether it slides is said for each, or else as ``slides`` says."""
    if keys.has("layer_types"):
        types = keys.words("layer_types", _LAYER_TYPES, len(slides))
        slides = [kind == "sliding_attention" for kind in types]
    return tuple(window if each else 0 for each in slides)


def _gemma_windows(keys: Keys, n_layers: int) -> tuple[int, ...]:
    """Which layers slide: said for each, or all but every ``sliding_window_pattern``-th."""
    window, pattern = (
        keys.integer("sliding_window", 4096),
        keys.integer("sliding_window_pattern", 6),
    )
    return _windows(keys, window, [bool((i + 1) % pattern) for i in range(n_layers)])


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
