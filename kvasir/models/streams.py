"""Records a decoder whose rows are several streams side by side: each layer predicts all of them,
computes one, and corrects the others by what came of it (AltUp, Baykal et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvasir.core.errors import ModelError
from kvasir.ir.builder import Builder
from kvasir.ir.program import Attr
from kvasir.models.export import After
from kvasir.models.parts import record_linear, record_norm, record_scale
from kvasir.models.spec import ModelConfig
from kvasir.models.stream_spec import StreamSpec

_EPS = 1e-5
"""Of the mean square of what is brought to another size."""


class StreamedBlock(Protocol):
    """Records what a layer makes of normed rows."""

    def attention(self, x: str) -> str: ...

    def mlp(self, x: str) -> str: ...


def record_streams(
    builder: Builder,
    config: ModelConfig,
    x: str,
    embedded: str,
    blocks: Sequence[StreamedBlock],
    after: After | None,
) -> str:
    """Rows behind the last layer, of the embeddings ``x``. ``embedded``: those that ``blocks``, the
    layers, have of their own. Raises ModelError where ``after`` would read rows between them."""
    if after is not None:
        raise ModelError(f"{config.family}: rows are several streams, and nothing reads a layer's")
    streams = config.streams
    assert streams is not None
    own = _Streams(builder, config, streams)
    joined = own.entered(x)
    for i, block in enumerate(blocks):
        joined = _Layer(own, block, i, f"layers.{i}.", f"l{i}.").record(joined, embedded)
    return own.left(joined)


@dataclass(frozen=True, slots=True)
class _Streams:
    builder: Builder
    config: ModelConfig
    spec: StreamSpec

    def entered(self, x: str) -> str:
        """A matrix of its own makes each of the others, brought to the size of the first."""
        others = [self.matched(x, i, "in", x) for i in range(1, self.spec.n)]
        joined = self.builder.op("join_columns", (x, *others[:2]), "streams")
        return joined if len(others) < 3 else self._join(joined, others[2])

    def _join(self, joined: str, other: str) -> str:
        return self.builder.op("join_columns", (joined, other), "streams.all")

    def left(self, joined: str) -> str:
        """Their mean, with matrices of their own again."""
        first = total = self.taken(joined, 0, "left.0")
        for i in range(1, self.spec.n):
            y = self.matched(self.taken(joined, i, f"left.{i}"), i, "out", first)
            total = self.builder.op("add", (total, y), f"left.sum{i}")
        return record_scale(self.builder, total, 1 / self.spec.n, "x.left")

    def matched(self, x: str, i: int, way: str, like: str) -> str:
        name = f"stream_{way}{i}"
        y = record_linear(self.builder, x, name, f"{name}.rows", self.config.hidden_size)
        return self.builder.op("match_rows", (y, like), f"{name}.matched", eps=_EPS)

    def taken(self, joined: str, i: int, out: str) -> str:
        width = self.config.hidden_size
        return self.builder.op("take_columns", (joined,), out, column=i * width, width=width)


@dataclass(frozen=True, slots=True)
class _Layer:
    streams: _Streams
    block: StreamedBlock
    number: int
    weights: str
    """Before names of its weights."""
    values: str
    """The same of what it makes."""

    def record(self, joined: str, embedded: str) -> str:
        """Streams of streams."""
        builder, spec, size = self._builder, self.streams.spec, self.streams.config.hidden_size
        x = self.streams.taken(joined, spec.active, f"{self.values}active")
        shares = self._shares(x, "stream_predict", spec.n**2)
        both, out = (joined, shares), f"{self.values}predicted"
        predicted = builder.op("mix_streams", both, out, width=size)
        x = self._computed(predicted)
        shares, out = self._shares(x, "stream_correct", spec.n), f"{self.values}corrected"
        of_active: dict[str, Attr] = {"width": size, "active": spec.active}
        joined = builder.op("correct_streams", (predicted, x, shares), out, (), **of_active)
        return self._with_own(joined, embedded)

    def _computed(self, predicted: str) -> str:
        """The active stream, behind attention with low-rank matrices beside it, and the MLP."""
        builder, spec, at = self._builder, self.streams.spec, self.values
        x = self.streams.taken(predicted, spec.active, f"{at}x")
        normed = self._before(x, "attn")
        beside = self._linear(self._linear(normed, "laurel_down", spec.rank), "laurel_up")
        beside = self._add(normed, self._norm(beside, "laurel_norm"), "laurel")
        y = self._behind(self.block.attention(normed), "attn")
        x = self._add(self._add(x, y, "x.attn"), beside, "x.both")
        x = builder.op("scale", (x,), f"{at}x.halved", factor=2.0**-0.5, softcap=0.0)
        y = self._behind(self.block.mlp(self._before(x, "mlp")), "mlp")
        return self._add(x, y, "x.mlp")

    def _shares(self, x: str, name: str, n: int) -> str:
        """Of each token, by a router that both read: tanh of its logits over the width."""
        config, of = self.streams.config, f"{name}.router"
        weight, out = f"{self.weights}stream_router_norm", f"{self.values}{of}.norm"
        y = record_norm(self._builder, config, x, weight, out)
        weight, out = f"{self.weights}stream_router", f"{self.values}{of}"
        y = record_linear(self._builder, y, weight, out, self.streams.spec.n)
        factor, name_of = 1 / config.hidden_size, f"{out}.tanh"
        y = self._builder.op("scale", (y,), name_of, factor=factor, softcap=1.0)
        return self._linear(y, name, n)

    def _with_own(self, joined: str, embedded: str) -> str:
        """The streams behind the first, plus what the layer's own embeddings make of the active."""
        builder, config, at = self._builder, self.streams.config, self.values
        x = self.streams.taken(joined, self.streams.spec.active, f"{at}corrected.active")
        if self.streams.spec.scaled:
            factor = builder.weight(f"{self.weights}stream_scale", (config.hidden_size,))
            x = builder.op("weigh", (x,), f"{at}corrected.scaled", (factor,))
        width = config.layer_embed
        gate = builder.op(
            "act", (self._linear(x, "own_gate", width),), f"{at}own_act", act=config.block.act
        )
        column, out = self.number * width, f"{at}own_gated"
        y = builder.op("mul_columns", (gate, embedded), out, column=column)
        y = self._norm(self._linear(y, "own_proj"), "own_post_norm")
        rest: dict[str, Attr] = {"width": config.hidden_size, "first": 1}
        return builder.op("add_to_streams", (joined, y), f"{at}streams", (), **rest)

    def _before(self, x: str, part: str) -> str:
        return self._norm(x, f"{part}_norm") if self.streams.config.block.pre_norms else x

    def _behind(self, x: str, part: str) -> str:
        return self._norm(x, f"{part}_post_norm") if self.streams.config.block.post_norms else x

    @property
    def _builder(self) -> Builder:
        return self.streams.builder

    def _add(self, x: str, y: str, out: str) -> str:
        return self._builder.op("add", (x, y), self.values + out)

    def _norm(self, x: str, name: str) -> str:
        config = self.streams.config
        return record_norm(self._builder, config, x, self.weights + name, self.values + name)

    def _linear(self, x: str, name: str, n: int = 0) -> str:
        n = n or self.streams.config.hidden_size
        return record_linear(self._builder, x, self.weights + name, self.values + name, n)
