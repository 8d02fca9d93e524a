"""Latent attention as a layer records it (DeepSeek-AI: DeepSeek-V2, 2024)."""

from __future__ import annotations

from kvasir.ir.program import KVSpec
from kvasir.models.parts import LayerRecorder
from kvasir.models.spec import LatentSpec, LayerSpec


def latent_attention(layer: LayerRecorder, own: LayerSpec, spec: LatentSpec, x: str) -> str:
    """Absorbed, prefill too: matrices of keys meet the queries, those of values the result."""
    builder, config = layer.builder, layer.config
    heads, size, biased = own.n_heads, own.head_dim, config.block.qkv_bias

    def head_linear(source: str, name: str, n: int, k: int) -> str:
        weights = (layer.weight(name, (heads, n, k)),)
        return builder.op("head_linear", (source,), layer.value(name), weights, n_heads=heads)

    at = config.kept_at(layer.layer)
    entry: dict[str, int] = {"layer": at, "n_heads": heads, "n_kv_heads": 1, "head_dim": size}
    builder.kv(KVSpec(at, "full", 0, 1, size, latent=spec.rank))
    source, q = x, "q"
    if spec.query_rank:
        low = layer.linear(x, "q_a", spec.query_rank, biased)
        source, q = layer.norm(low, "q_a_norm", eps=spec.norm_eps), "q_b"
    plain = layer.linear(source, f"{q}_plain", heads * spec.key_dim)
    turned = layer.linear(source, f"{q}_turned", heads * spec.rope_dim)
    kept = layer.linear(x, "kv_a", size, biased)
    turned = builder.op(
        "latent_write",
        (kept, turned, "positions"),
        f"{turned}.rope",
        (layer.weight("kv_a_norm", (spec.rank,)),),
        **entry,
        rotary_dim=spec.rope_dim,
        style="interleaved" if config.block.interleaved_rope else "neox",
        table=own.rope,
        eps=spec.norm_eps,
    )
    out = builder.op(
        "latent_attention",
        (head_linear(plain, "k_up", spec.rank, spec.key_dim), turned),
        layer.value("attn"),
        (),
        **entry,
        latent=spec.rank,
        scale=config.attention_scale,
        window=0,
    )
    mixed = head_linear(out, "v_up", spec.value_dim, spec.rank)
    return layer.linear(mixed, "o", config.hidden_size, config.block.o_bias)
