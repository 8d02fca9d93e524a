"""The one builder: a decoder-only transformer as a program, from its config."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from kvasir.ir.builder import Builder
from kvasir.ir.program import KVSpec, Program
from kvasir.models.rope import rope_table
from kvasir.models.spec import NO_ROPE, ExpertConfig, LatentSpec, LayerSpec, ModelConfig
from kvasir.models.tensors import weight_of

_OF_QUERIES = "queries_"
"""Before the name of a rope, the table that its queries turn by."""


def build_program(config: ModelConfig, *, max_positions: int | None = None) -> Program:
    """The raw program of a model.

    ``max_positions``: rows of the rope tables, i.e. the longest request that will run; by default
    the model's own limit.
    """
    builder = Builder(config.family, weight_of(config))
    rows = max_positions or config.max_positions
    tokens = builder.input("tokens", ("T",), "i32")
    builder.input("positions", ("T",), "i32")
    if config.block.both_ways:
        builder.input("ends", ("T",), "i32")
    logit_rows = builder.input("logit_rows", ("R",), "i32")
    dims = {layer.rope: layer.turned_dim for layer in config.layers}
    for name, rope in config.ropes.items():
        dim = rope.rotary_dim or dims[name]
        builder.constant(name, rope_table(rope, dim, rows))
        if rope.query_beta:
            builder.constant(_OF_QUERIES + name, rope_table(rope, dim, rows, queries=True))
    if NO_ROPE in dims:
        builder.constant(NO_ROPE, np.zeros((rows, 0), np.float32))
    embed = builder.weight("embed", (config.vocab_size, config.hidden_size))
    x = builder.op("embed", (tokens,), "x", (embed,), scale=1.0)
    if config.embed_scale != 1.0:
        x = builder.op("scale", (x,), "x.scaled", factor=config.embed_scale, softcap=0.0)
    if config.token_types:
        table = builder.weight("types", (config.token_types, config.hidden_size))
        of_type = builder.op(
            "embed", (builder.input("types", ("T",), "i32"),), "x.types", (table,), scale=1.0
        )
        x = builder.op("add", (x, of_type), "x.typed")
    if config.learned_positions:
        table = builder.weight("positions", (config.max_positions, config.hidden_size))
        at = builder.op("embed", ("positions",), "x.positions", (table,), scale=1.0)
        x = builder.op("add", (x, at), "x.placed")
    if config.block.sum_norms or config.block.embed_norm:
        x = _norm(builder, config, x, "embed_norm", "x.norm")
    for layer, spec in enumerate(config.layers):
        x = _Block(builder, config, layer, spec).record(x)
    return builder.build(_head(builder, config, x, logit_rows))


def _head(builder: Builder, config: ModelConfig, x: str, logit_rows: str) -> tuple[str, ...]:
    rows = builder.op("gather_rows", (x, logit_rows), "rows")
    last = f"layers.{len(config.layers) - 1}.mlp_norm"
    norm = last if config.block.sum_norms else "final_norm"
    rows = _norm(builder, config, rows, norm, "rows.norm")
    name = "embed" if config.tied else "lm_head"
    head = [builder.weight(name, (config.vocab_size, config.hidden_size))]
    if config.block.head_bias:
        head.append(builder.weight("lm_head.bias", (config.vocab_size,)))
    logits = builder.op("lm_head", (rows,), "logits", tuple(head))
    scale, cap = config.logit_scale, config.final_softcap
    if cap > 0 or scale != 1.0:
        name = "logits.capped" if cap > 0 else "logits.scaled"
        logits = builder.op("scale", (logits,), name, factor=scale, softcap=cap)
    drawn = builder.op("sample", (logits,), "drawn")
    return logits, drawn


def _norm(
    builder: Builder, config: ModelConfig, x: str, weight: str, out: str, eps: float = 0.0
) -> str:
    """``out``: ``x`` after the family's norm of rows, with the weight of that name; ``eps`` in
    place of the model's."""
    names = [weight, f"{weight}.bias"] if config.block.norm == "layer_bias" else [weight]
    kind = "norm" if config.block.norm == "rms" else "layer_norm"
    weights = tuple(builder.weight(name, (builder.columns(x),)) for name in names)
    return builder.op(kind, (x,), out, weights, eps=eps or config.norm_eps, to="f32", block=0)


class _Block:
    """Records one decoder block; names of values and weights start with the layer."""

    def __init__(self, builder: Builder, config: ModelConfig, layer: int, spec: LayerSpec) -> None:
        self.builder, self.config, self.layer, self.spec = builder, config, layer, spec

    def record(self, x: str) -> str:
        experts = self.spec.experts
        mlp = self._mlp if experts is None else partial(self._mixture, experts)
        if self.config.block.parallel:
            normed = self._norm(x, "attn_norm")
            of_mlp = normed if self.config.block.one_norm else self._norm(x, "mlp_norm")
            return self._add(self._add(x, self._attention(normed), "attn"), mlp(of_mlp), "mlp")
        x = self._residual(x, "attn", self._attention)
        return self._residual(x, "mlp", mlp)

    def _residual(self, x: str, part: str, body: Callable[[str], str]) -> str:
        config = self.config
        if config.block.sum_norms:
            return self._normed_sum(x, body(x), part)
        is_normed = config.block.embed_norm and part == "attn" and not self.layer
        has_norm = config.block.pre_norms and not is_normed
        y = body(self._norm(x, f"{part}_norm") if has_norm else x)
        if config.block.post_norms:
            y = self._norm(y, f"{part}_post_norm")
        return self._add(x, y, part)

    def _normed_sum(self, x: str, y: str, part: str) -> str:
        """The last one is normed where rows are gathered."""
        total = self._add(x, y, part)
        is_last = part == "mlp" and self.layer + 1 == len(self.config.layers)
        return total if is_last else self._norm(total, f"{part}_norm")

    def _add(self, x: str, y: str, part: str) -> str:
        factor = self.config.residual_scale
        if factor != 1.0:
            scaled = self._value(f"{part}.scaled")
            y = self.builder.op("scale", (y,), scaled, factor=factor, softcap=0.0)
        return self.builder.op("add", (x, y), self._value(f"x.{part}"))

    def _attention(self, x: str) -> str:
        if self.spec.latent is not None:
            return self._latent_attention(x, self.spec.latent)
        config, layer, spec = self.config, self.layer, self.spec
        heads, kv_heads, dim, window = spec.n_heads, spec.n_kv_heads, spec.head_dim, spec.window
        kept = 0 if config.block.both_ways else window
        self.builder.kv(KVSpec(layer, "window" if kept else "full", kept, kv_heads, dim))
        rope = config.ropes.get(spec.rope)
        own = rope is not None and rope.query_beta > 0
        q = self._head(x, "q", heads, _OF_QUERIES + spec.rope if own else spec.rope)
        k = self._head(x, "k", kv_heads, spec.rope)
        v = self._linear(x, "v", kv_heads * dim, config.block.qkv_bias)
        self.builder.ops("kv_write", (k, v), (), layer=layer, n_kv_heads=kv_heads, head_dim=dim)
        out = self.builder.op(
            "attention",
            (q, "ends") if config.block.both_ways else (q,),
            self._value("attn"),
            (self._weight("sinks", (heads,)),) if config.block.sinks else (),
            layer=layer,
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=dim,
            scale=config.attention_scale,
            window=window,
            softcap=config.attention_softcap,
            to="f32",
            block=0,
        )
        return self._linear(out, "o", config.hidden_size, config.block.o_bias)

    def _latent_attention(self, x: str, spec: LatentSpec) -> str:
        """Absorbed, prefill too: matrices of keys meet the queries, those of values the result."""
        config, heads = self.config, self.spec.n_heads
        entry: dict[str, int] = {
            "layer": self.layer,
            "n_heads": heads,
            "n_kv_heads": 1,
            "head_dim": self.spec.head_dim,
        }
        self.builder.kv(KVSpec(self.layer, "full", 0, 1, self.spec.head_dim, latent=spec.rank))
        source, q = x, "q"
        if spec.query_rank:
            low = self._linear(x, "q_a", spec.query_rank, config.block.qkv_bias)
            source, q = self._norm(low, "q_a_norm", eps=spec.norm_eps), "q_b"
        plain = self._linear(source, f"{q}_plain", heads * spec.key_dim, False)
        turned = self._linear(source, f"{q}_turned", heads * spec.rope_dim, False)
        kept = self._linear(x, "kv_a", self.spec.head_dim, config.block.qkv_bias)
        turned = self.builder.op(
            "latent_write",
            (kept, turned, "positions"),
            f"{turned}.rope",
            (self._weight("kv_a_norm", (spec.rank,)),),
            **entry,
            rotary_dim=spec.rope_dim,
            style="interleaved" if config.block.interleaved_rope else "neox",
            table=self.spec.rope,
            eps=spec.norm_eps,
        )
        out = self.builder.op(
            "latent_attention",
            (self._head_linear(plain, "k_up", spec.rank, spec.key_dim), turned),
            self._value("attn"),
            (),
            **entry,
            latent=spec.rank,
            scale=config.attention_scale,
            window=0,
        )
        values = self._head_linear(out, "v_up", spec.value_dim, spec.rank)
        return self._linear(values, "o", config.hidden_size, config.block.o_bias)

    def _head_linear(self, x: str, name: str, n: int, k: int) -> str:
        weight = self._weight(name, (self.spec.n_heads, n, k))
        return self.builder.op(
            "head_linear", (x,), self._value(name), (weight,), n_heads=self.spec.n_heads
        )

    def _head(self, x: str, name: str, n_heads: int, table: str) -> str:
        """Queries or keys: linear, norm, rope."""
        block, norm = self.config.block, f"{name}_norm"
        y = self._linear(x, name, n_heads * self.spec.head_dim, block.qkv_bias)
        if block.qk_norm == "width":
            y = self._norm(y, norm, f"{y}.norm")
        if block.qk_norm == "heads":
            y = self._head_norm(y, norm, n_heads)
        y = self._rope(y, n_heads, table)
        return self._head_norm(y, norm, n_heads) if block.qk_norm == "turned" else y

    def _head_norm(self, x: str, name: str, n_heads: int) -> str:
        dim = self.spec.head_dim
        return self.builder.op(
            "head_norm",
            (x,),
            f"{x}.norm",
            (self._weight(name, (dim,)),),
            n_heads=n_heads,
            head_dim=dim,
            eps=self.config.norm_eps,
        )

    def _rope(self, x: str, n_heads: int, table: str) -> str:
        dim, rope = self.spec.head_dim, self.config.ropes.get(self.spec.rope)
        return self.builder.op(
            "rope",
            (x, "positions"),
            f"{x}.rope",
            n_heads=n_heads,
            head_dim=dim,
            rotary_dim=0 if rope is None else rope.rotary_dim or dim,
            style="interleaved" if self.config.block.interleaved_rope else "neox",
            table=table,
        )

    def _mlp(self, x: str) -> str:
        return self._inner_mlp(x, self.spec.ffn_size)

    def _inner_mlp(self, x: str, inner: int, prefix: str = "") -> str:
        block, hidden = self.config.block, self._value(f"{prefix}hidden")
        names = ("gate", "up") if block.gated else ("up",)
        parts = tuple(self._linear(x, f"{prefix}{y}", inner, block.mlp_bias) for y in names)
        kind = "gated_act" if block.gated else "act"
        h = self.builder.op(kind, parts, hidden, act=block.act)
        return self._linear(h, f"{prefix}down", self.config.hidden_size, block.mlp_bias)

    def _mixture(self, experts: ExpertConfig, x: str) -> str:
        """Experts, and beside them those that see every token."""
        chosen = self._experts(experts, x)
        if not experts.shared_size:
            return chosen
        shared = self._inner_mlp(x, experts.shared_size, "shared.")
        if self.config.block.shared_gate:
            gate = self._linear(x, "shared_gate", 1, False)
            shared = self.builder.op("gate_rows", (shared, gate), self._value("shared.gated"))
        return self.builder.op("add", (chosen, shared), self._value("experts.shared"))

    def _experts(self, experts: ExpertConfig, x: str) -> str:
        config = self.config
        logits = self._linear(x, "router", experts.n_experts, config.block.expert_bias)
        ids, weights = self._value("ids"), self._value("shares")
        bias = (self._weight("choice_bias", (experts.n_experts,)),) if experts.has_bias else ()
        self.builder.ops(
            "route",
            (logits,),
            (ids, weights),
            bias,
            n_experts=experts.n_experts,
            top_k=experts.top_k,
            score=experts.score,
            n_groups=experts.n_groups,
            top_groups=experts.top_groups,
            group_score="best_two" if experts.has_bias else "best",
            normalize=experts.normalize,
            scale=experts.scale,
        )
        k, act, out = experts.top_k, config.block.act, self._value("experts")
        matrices = self._expert_weights(experts.n_experts)
        return self.builder.op("experts", (x, ids, weights), out, matrices, top_k=k, act=act)

    def _expert_weights(self, n: int) -> tuple[str, ...]:
        """Matrices of ``n`` experts, then their biases, if any."""
        inner, hidden = self.spec.ffn_size, self.config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            "gate": (n, inner, hidden),
            "up": (n, inner, hidden),
            "down": (n, hidden, inner),
        }
        if self.config.block.expert_bias:
            shapes |= {f"{name}_bias": shape[:2] for name, shape in shapes.items()}
        return tuple(self._weight(f"experts.{name}", shape) for name, shape in shapes.items())

    def _norm(self, x: str, name: str, out: str = "", eps: float = 0.0) -> str:
        weight, out = f"layers.{self.layer}.{name}", out or self._value(name)
        return _norm(self.builder, self.config, x, weight, out, eps)

    def _linear(self, x: str, name: str, n: int, bias: bool) -> str:
        weights = [self._weight(name, (n, self.builder.columns(x)))]
        if bias:
            weights.append(self._weight(f"{name}.bias", (n,)))
        return self.builder.op(
            "linear",
            (x,),
            self._value(name),
            tuple(weights),
            n_segments=1,
            bias=bias,
            epilogue="none",
            act="none",
            to="f32",
            block=0,
        )

    def _weight(self, name: str, shape: tuple[int, ...]) -> str:
        return self.builder.weight(f"layers.{self.layer}.{name}", shape)

    def _value(self, name: str) -> str:
        return f"l{self.layer}.{name}"
