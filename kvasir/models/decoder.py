"""The one builder: a decoder-only transformer as a program, from its config."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kvasir.ir.builder import Builder, WeightMaker
from kvasir.ir.ops.state import conv_size
from kvasir.ir.program import Attr, KVSpec, Program, state_spec
from kvasir.models.alibi import SLOPES
from kvasir.models.export import NO_EXPORT, After, Export
from kvasir.models.latent_attention import latent_attention
from kvasir.models.linear_scan import linear_scan
from kvasir.models.lm_head import record_head
from kvasir.models.merged_rows import merged_rows
from kvasir.models.parts import (
    LayerRecorder,
    layer_embeddings,
    quick_rows,
    record_act,
    record_embed,
    record_head_norm,
    record_norm,
    record_scale,
)
from kvasir.models.record_rope import OF_QUERIES, record_ropes, turned_by
from kvasir.models.spec import ROPE, ExpertConfig, LayerSpec, ModelConfig
from kvasir.models.streams import record_streams


def record_program(
    config: ModelConfig,
    weights: WeightMaker,
    *,
    max_positions: int | None = None,
    export: Export = NO_EXPORT,
) -> Program:
    """The raw program of a model. ``weights``: where each of them lies.

    ``max_positions``: rows of the rope tables, i.e. the longest request that will run; by default
    the model's own limit. ``export``: what others read of it.
    """
    builder = Builder(config.family, export.weights(weights))
    rows = max_positions or config.max_positions
    tokens = builder.input("tokens", ("T",), "i32")
    builder.input("positions", ("T",), "i32")
    if config.block.sees_ahead:
        builder.input("ends", ("T",), "i32")
    logit_rows = builder.input("logit_rows", ("R",), "i32")
    record_ropes(builder, config, rows)
    hidden = config.hidden_size
    x = record_embed(builder, tokens, "embed", (config.vocab_size, hidden), "x")
    x = record_scale(builder, x, config.embed_scale, "x.scaled")
    deep: After | None = None
    if config.sees:
        x, deep = merged_rows(builder, config, x)
    if config.token_types:
        types = builder.input("types", ("T",), "i32")
        shape = config.token_types, hidden
        of_type = record_embed(builder, types, "types", shape, "x.types")
        x = builder.op("add", (x, of_type), "x.typed")
    if config.learned_positions:
        shape = config.max_positions, hidden
        at = record_embed(builder, "positions", "positions", shape, "x.positions")
        x = builder.op("add", (x, at), "x.placed")
    if config.block.sum_norms or config.block.embed_norm:
        x = record_norm(builder, config, x, "embed_norm", "x.norm")
    embedded = layer_embeddings(builder, config, tokens, x)
    tapped: dict[int, str] = {}
    after = export.tapping(deep, tapped)
    if config.streams is None:
        x = record_blocks(builder, config, x, embedded, after=after)
    else:
        blocks = [_Block(builder, config, i, each, "") for i, each in enumerate(config.layers)]
        x = record_streams(builder, config, x, embedded, blocks, after)
    given = export.record(builder, config, x, tapped)
    return builder.build((*record_head(builder, config, x, logit_rows), *given))


def record_blocks(
    builder: Builder,
    config: ModelConfig,
    x: str,
    embedded: str = "",
    prefix: str = "",
    after: After | None = None,
    layers: range | None = None,
) -> str:
    """All blocks over the rows ``x``, or those of ``layers``; ``prefix`` stands before the names of
    what they make and read; ``after`` makes of the number and the rows of each what the next one
    reads."""
    for layer in range(len(config.layers)) if layers is None else layers:
        block = _Block(builder, config, layer, config.layers[layer], prefix)
        x = block.finish(block.record(x), embedded)
        x = x if after is None else after(layer, x)
    return x


def record_reading_block(builder: Builder, config: ModelConfig, x: str, read: str) -> str:
    """The first block over the rows ``x``, whose attention reads ``read``, normed before."""
    block = _Block(builder, config, 0, config.layers[0], "")
    return block.reading(x, read)


class _Block(LayerRecorder):
    """Records one decoder block."""

    def __init__(
        self, builder: Builder, config: ModelConfig, layer: int, spec: LayerSpec, prefix: str
    ) -> None:
        super().__init__(builder, config, layer, prefix)
        self.spec = spec
        self.kept = config.kept_at(layer if spec.source is None else spec.source)

    def record(self, x: str) -> str:
        experts = self.spec.experts
        mlp = self.mlp if experts is None else partial(self._mixture, experts)
        if self.config.block.parallel:
            normed = self.norm(x, "attn_norm")
            of_mlp = normed if self.config.block.one_norm else self.norm(x, "mlp_norm")
            return self._add(self._add(x, self.attention(normed), "attn"), mlp(of_mlp), "mlp")
        if self.spec.mixes:
            x = self._residual(x, "attn", self._mixer)
        if experts is None and not self.spec.ffn_size:
            return x
        if self.config.block.beside and experts is not None:
            return self._beside(experts, x)
        return self._residual(x, "mlp", mlp)

    def reading(self, x: str, read: str) -> str:
        """As ``record``, where attention reads other rows than those that it is added to."""
        return self._residual(self._add(x, self.attention(read), "attn"), "mlp", self.mlp)

    def own(self, x: str, embedded: str) -> str:
        """What the layer's own embeddings of the tokens make of rows."""
        width = self.config.layer_embed
        gate = self.linear(x, "own_gate", width)
        gate = self.builder.op("act", (gate,), self.value("own_act"), act=self.config.block.act)
        column, out = self.layer * width, self.value("own_gated")
        y = self.builder.op("mul_columns", (gate, embedded), out, column=column)
        return self.norm(self.linear(y, "own_proj", self.config.hidden_size), "own_post_norm")

    def finish(self, x: str, embedded: str) -> str:
        """``x`` with what its own embeddings add, and with the layer's factor."""
        if embedded:
            x = self._add(x, self.own(x, embedded), "own")
        if not self.config.block.layer_scale:
            return x
        factor = self.weight("layer_scale", (self.config.hidden_size,))
        return self.builder.op("weigh", (x,), self.value("x.scaled"), (factor,))

    def _residual(self, x: str, part: str, body: Callable[[str], str]) -> str:
        config = self.config
        if config.block.sum_norms:
            return self._normed_sum(x, body(x), part)
        is_normed = config.block.embed_norm and part == "attn" and not self.layer
        has_norm = config.block.pre_norms and not is_normed
        y = body(self.norm(x, f"{part}_norm") if has_norm else x)
        if config.block.post_norms:
            y = self.norm(y, f"{part}_post_norm")
        if config.block.part_scales:
            factor = self.weight(f"{part}_scale", (config.hidden_size,))
            y = self.builder.op("weigh", (y,), self.value(f"{part}.weighed"), (factor,))
        return self._add(x, y, part)

    def _normed_sum(self, x: str, y: str, part: str) -> str:
        """The last one is normed where rows are gathered."""
        total = self._add(x, y, part)
        is_last = part == "mlp" and self.layer + 1 == len(self.config.layers)
        total = total if is_last else self.norm(total, f"{part}_norm")
        if not self.config.block.sums_twice or part == "mlp":
            return total
        return self.norm(self._add(x, total, "again"), "attn_norm_again")

    def _add(self, x: str, y: str, part: str) -> str:
        y = self.scaled(y, self.config.residual_scale, f"{part}.scaled")
        return self.builder.op("add", (x, y), self.value(f"x.{part}"))

    def _mixer(self, x: str) -> str:
        factors = self.config.multipliers
        if self.spec.n_taps:
            return self._short_conv(x)
        y = ""
        if self.spec.attends:
            y = self.scaled(self.attention(x), factors.attention, "o.scaled")
        if self.spec.scan is None:
            return y
        z = linear_scan(self, self.spec.scan, x)
        z = self.scaled(z, factors.scan, "scan_out.scaled")
        return self.builder.op("add", (y, z), self.value("mixers")) if y else z

    def attention(self, x: str) -> str:
        if self.spec.latent is not None:
            return latent_attention(self, self.spec, self.spec.latent, x)
        config, spec = self.config, self.spec
        heads, kv_heads, dim, window = spec.n_heads, spec.n_kv_heads, spec.head_dim, spec.window
        kept = 0 if config.block.both_ways else window
        rope = config.ropes.get(spec.rope)
        own = rope is not None and rope.query_beta > 0
        q = self._head(x, "q", heads, OF_QUERIES + spec.rope if own else spec.rope)
        if spec.source is None:
            kind = "window" if kept else "full"
            self.builder.kv(KVSpec(self.kept, kind, kept, kv_heads, dim))
            self._write(x)
        out = self.builder.op(
            "attention",
            (q, "ends") if self._sees_ahead else (q,),
            self.value("attn"),
            (self.weight("sinks", (heads,)),) if config.block.sinks else (),
            layer=self.kept,
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=dim,
            scale=config.attention_scale,
            window=window,
            chunked=window > 0 and config.block.chunked,
            softcap=config.attention_softcap,
            to="f32",
            block=0,
            **({"slopes": SLOPES} if config.block.alibi else {}),
        )
        out = self.scaled(out, config.head_share**0.5, "attn.padded")
        if config.block.output_gate:
            gate = self.linear(x, "output_gate", heads * dim)
            gate = self.builder.op("act", (gate,), f"{gate}.sigmoid", act="sigmoid")
            out = self.builder.op("mul_columns", (out, gate), self.value("attn.gated"), column=0)
        return self.linear(out, "o", config.hidden_size, config.block.o_bias)

    @property
    def _sees_ahead(self) -> bool:
        block = self.config.block
        return block.sees_ahead and (self.spec.window > 0 or not block.near_spans)

    def _short_conv(self, x: str) -> str:
        size, n_taps, layer = self.config.hidden_size, self.spec.n_taps, self.kept
        self.builder.kv(state_spec(layer, conv_size(size, n_taps)))
        y = self.linear(x, "conv_in", 3 * size)
        weights, out = (self.weight("conv", (n_taps, size)),), self.value("conv")
        attrs: dict[str, Attr] = {"layer": layer, "n_taps": n_taps, "gated": True}
        y = self.builder.op("short_conv", (y,), out, weights, **attrs)
        return self.linear(y, "conv_out", size)

    def _write(self, x: str) -> None:
        """Keys and values of the layer's own."""
        n, dim, block = self.spec.n_kv_heads, self.spec.head_dim, self.config.block
        k = self._head(x, "k", n, self.spec.rope)
        if self.spec.keys_are_values:
            v = self.value("k")
        else:
            v = self.linear(x, "v", n * dim, block.qkv_bias)
        if block.qk_norm == "all":
            v = self._head_norm(v, "", n, self.value("v.norm"))
        self.builder.ops("kv_write", (k, v), (), layer=self.kept, n_kv_heads=n, head_dim=dim)

    def _head(self, x: str, name: str, n_heads: int, table: str) -> str:
        """Queries or keys: linear, norm, rope."""
        block, norm = self.config.block, f"{name}_norm"
        y = self.linear(x, name, n_heads * self.spec.head_dim, block.qkv_bias)
        if block.qk_norm == "width":
            y = self.norm(y, norm, f"{y}.norm")
        if block.qk_norm in ("heads", "all"):
            y = self._head_norm(y, norm, n_heads)
        y = self._rope(y, n_heads, table)
        if block.qk_norm == "bare" and self.spec.rope == ROPE:
            return self._head_norm(y, "", n_heads)
        return self._head_norm(y, norm, n_heads) if block.qk_norm == "turned" else y

    def _head_norm(self, x: str, name: str, n_heads: int, out: str = "") -> str:
        """Without a name, without a weight."""
        weights = (self.weight(name, (self.spec.head_dim,)),) if name else ()
        eps = self.config.norm_eps * self.config.head_share
        return record_head_norm(self.builder, x, out or f"{x}.norm", n_heads, eps, weights)

    def _rope(self, x: str, n_heads: int, table: str) -> str:
        dim, rope = self.spec.head_dim, self.config.ropes.get(self.spec.rope)
        return self.builder.op(
            "rope",
            (x, turned_by(self.spec.rope, rope)),
            f"{x}.rope",
            n_heads=n_heads,
            head_dim=dim,
            rotary_dim=0 if rope is None else rope.rotary_dim or dim,
            style="interleaved" if self.config.block.interleaved_rope else "neox",
            table=table,
        )

    def mlp(self, x: str) -> str:
        factors = self.config.multipliers
        x = self.scaled(x, factors.mlp_in, "mlp.rows")
        return self.scaled(self._inner_mlp(x, self.spec.ffn_size), factors.mlp_out, "down.scaled")

    def _inner_mlp(self, x: str, inner: int, prefix: str = "") -> str:
        block, hidden = self.config.block, self.value(f"{prefix}hidden")
        names = ("gate", "up") if block.gated else ("up",)
        x = quick_rows(self.builder, x, block.act, self.value(f"{prefix}rows"))
        parts = tuple(self.linear(x, f"{prefix}{y}", inner, block.mlp_bias) for y in names)
        if self.spec.deviations is None or not block.gated:
            h = record_act(self.builder, parts, block.act, hidden)
        else:
            attrs: dict[str, Attr] = {"deviations": self.spec.deviations, "act": block.act}
            h = self.builder.op("sparse_gate", parts, hidden, (), **attrs)
        has_bias = block.mlp_bias or block.down_bias
        return self.linear(h, f"{prefix}down", self.config.hidden_size, has_bias)

    def _mixture(self, experts: ExpertConfig, x: str) -> str:
        """Experts, and beside them those that see every token."""
        if experts.width:
            rows = self.linear(x, "experts_in", experts.width)
            chosen = self._experts(experts, rows, x)
            chosen = self.linear(chosen, "experts_out", self.config.hidden_size)
        else:
            chosen = self._experts(experts, x)
        if not experts.shared_size:
            return chosen
        shared = self._inner_mlp(x, experts.shared_size, "shared.")
        if self.config.block.shared_gate:
            gate = self.linear(x, "shared_gate", 1)
            shared = self.builder.op("gate_rows", (shared, gate), self.value("shared.gated"))
        return self.builder.op("add", (chosen, shared), self.value("experts.shared"))

    def _beside(self, experts: ExpertConfig, x: str) -> str:
        """Experts and the MLP read the same rows, each with norms of its own."""
        builder, factor = self.builder, self.config.hidden_size**-0.5
        y = self._inner_mlp(self.norm(x, "mlp_norm"), experts.shared_size)
        y = self.norm(y, "mlp_own_norm")
        routed = self.norm(x, "router_norm")
        routed = self.scaled(routed, factor, "router.scaled")
        z = self._experts(experts, self.norm(x, "experts_norm"), routed)
        z = self.norm(z, "experts_post_norm")
        both = builder.op("add", (y, z), self.value("experts.shared"))
        return self._add(x, self.norm(both, "mlp_post_norm"), "mlp")

    def _experts(self, experts: ExpertConfig, x: str, routed: str = "") -> str:
        """``routed``: the rows that the router reads, if not ``x``."""
        config = self.config
        rows, bias = routed or x, config.block.expert_bias
        logits = self.linear(rows, "router", experts.n_experts, bias)
        ids, weights = self.value("ids"), self.value("shares")
        choice = (self.weight("choice_bias", (experts.n_experts,)),) if experts.has_bias else ()
        self.builder.ops(
            "route",
            (logits,),
            (ids, weights),
            choice,
            n_experts=experts.n_experts,
            top_k=experts.top_k,
            score=experts.score,
            n_groups=experts.n_groups,
            top_groups=experts.top_groups,
            group_score="best_two" if experts.has_bias else "best",
            normalize=experts.normalize,
            scale=experts.scale,
        )
        if config.block.beside:
            factors, out = self.weight("expert_scale", (experts.n_experts,)), f"{weights}.scaled"
            weights = self.builder.op("weigh_experts", (weights, ids), out, (factors,))
        k, act, out = experts.top_k, config.block.act, self.value("experts")
        matrices = self._expert_weights(experts)
        if config.block.weighs_input:
            x = self.builder.op("spread", (x, weights), self.value("pairs"), top_k=k)
            return self.builder.op("experts", (x, ids), out, matrices, top_k=k, act=act)
        return self.builder.op("experts", (x, ids, weights), out, matrices, top_k=k, act=act)

    def _expert_weights(self, experts: ExpertConfig) -> tuple[str, ...]:
        """Matrices, then their biases, if any."""
        n, inner = experts.n_experts, self.spec.ffn_size
        width = experts.width or self.config.hidden_size
        shapes: dict[str, tuple[int, ...]] = {
            **({"gate": (n, inner, width)} if self.config.block.gated else {}),
            "up": (n, inner, width),
            "down": (n, width, inner),
        }
        if self.config.block.expert_bias:
            shapes |= {f"{name}_bias": shape[:2] for name, shape in shapes.items()}
        return tuple(self.weight(f"experts.{name}", shape) for name, shape in shapes.items())
