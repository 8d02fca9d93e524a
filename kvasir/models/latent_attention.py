"""Latent attention as a layer records it (DeepSeek-AI: DeepSeek-V2, 2024)."""

from __future__ import annotations

from kvasir.ir.builder import Builder
from kvasir.ir.program import KVSpec
from kvasir.models.parts import record_linear, record_norm
from kvasir.models.spec import LatentSpec, ModelConfig


def latent_attention(
    builder: Builder, config: ModelConfig, layer: int, spec: LatentSpec, x: str
) -> str:
    """Absorbed, prefill too: matrices of keys meet the queries, those of values the result."""
    own, weights, values = config.layers[layer], f"layers.{layer}.", f"l{layer}."
    heads, size, biased = own.n_heads, own.head_dim, config.block.qkv_bias

    def linear(source: str, name: str, n: int, bias: bool = False) -> str:
        return record_linear(builder, source, weights + name, values + name, n, bias)

    def head_linear(source: str, name: str, n: int, k: int) -> str:
        weight = builder.weight(weights + name, (heads, n, k))
        return builder.op("head_linear", (source,), values + name, (weight,), n_heads=heads)

    at = config.kept_at(layer)
    entry: dict[str, int] = {"layer": at, "n_heads": heads, "n_kv_heads": 1, "head_dim": size}
    builder.kv(KVSpec(at, "full", 0, 1, size, latent=spec.rank))
    source, q = x, "q"
    if spec.query_rank:
        low, norm = linear(x, "q_a", spec.query_rank, biased), "q_a_norm"
        eps = spec.norm_eps
        source = record_norm(builder, config, low, weights + norm, values + norm, eps)
        q = "q_b"
    plain = linear(source, f"{q}_plain", heads * spec.key_dim)
    turned = linear(source, f"{q}_turned", heads * spec.rope_dim)
    kept = linear(x, "kv_a", size, biased)
    turned = builder.op(
        "latent_write",
        (kept, turned, "positions"),
        f"{turned}.rope",
        (builder.weight(weights + "kv_a_norm", (spec.rank,)),),
        **entry,
        rotary_dim=spec.rope_dim,
        style="interleaved" if config.block.interleaved_rope else "neox",
        table=own.rope,
        eps=spec.norm_eps,
    )
    out = builder.op(
        "latent_attention",
        (head_linear(plain, "k_up", spec.rank, spec.key_dim), turned),
        values + "attn",
        (),
        **entry,
        latent=spec.rank,
        scale=config.attention_scale,
        window=0,
    )
    mixed = head_linear(out, "v_up", spec.value_dim, spec.rank)
    return linear(mixed, "o", config.hidden_size, config.block.o_bias)
