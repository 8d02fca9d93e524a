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
from kvasir.models.parts import record_linear, record_scale
from kvasir.models.spec import ModelConfig
from kvasir.models.stream_spec import StreamSpec

_EPS = 1e-5
"""Of the mean square of what is brought to another size."""


class StreamedBlock(Protocol):
    """Records parts of a layer, which has names of its own for its weights and what it makes."""

    def attention(self, x: str) -> str: ...

    def mlp(self, x: str) -> str: ...

    def own(self, x: str, embedded: str) -> str: ...

    def linear(self, x: str, name: str, n: int, *, out: str = "") -> str: ...

    def norm(self, x: str, name: str, out: str = "") -> str: ...

    def weight(self, name: str, shape: tuple[int, ...]) -> str: ...

    def value(self, name: str) -> str: ...


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
    for block in blocks:
        joined = _Layer(own, block).record(joined, embedded)
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

    def record(self, joined: str, embedded: str) -> str:
        """Streams of streams."""
        builder, spec, size = self._builder, self.streams.spec, self.streams.config.hidden_size
        x = self.streams.taken(joined, spec.active, self.block.value("active"))
        shares = self._shares(x, "stream_predict", spec.n**2)
        both, out = (joined, shares), self.block.value("predicted")
        predicted = builder.op("mix_streams", both, out, width=size)
        x = self._computed(predicted)
        shares, out = self._shares(x, "stream_correct", spec.n), self.block.value("corrected")
        of_active: dict[str, Attr] = {"width": size, "active": spec.active}
        joined = builder.op("correct_streams", (predicted, x, shares), out, (), **of_active)
        return self._with_own(joined, embedded)

    def _computed(self, predicted: str) -> str:
        """The active stream, behind attention with low-rank matrices beside it, and the MLP."""
        builder, spec, block = self._builder, self.streams.spec, self.block
        x = self.streams.taken(predicted, spec.active, block.value("x"))
        normed = self._before(x, "attn")
        beside = block.linear(normed, "laurel_down", spec.rank)
        beside = block.linear(beside, "laurel_up", self.streams.config.hidden_size)
        beside = self._add(normed, block.norm(beside, "laurel_norm"), "laurel")
        y = self._behind(block.attention(normed), "attn")
        x = self._add(self._add(x, y, "x.attn"), beside, "x.both")
        x = record_scale(builder, x, 2.0**-0.5, block.value("x.halved"))
        y = self._behind(block.mlp(self._before(x, "mlp")), "mlp")
        return self._add(x, y, "x.mlp")

    def _shares(self, x: str, name: str, n: int) -> str:
        """Of each token, by a router that both read: tanh of its logits over the width."""
        block, width = self.block, self.streams.config.hidden_size
        out = block.value(f"{name}.router")
        y = block.norm(x, "stream_router_norm", f"{out}.norm")
        y = block.linear(y, "stream_router", self.streams.spec.n, out=out)
        y = self._builder.op("scale", (y,), f"{out}.tanh", factor=1 / width, softcap=1.0)
        return block.linear(y, name, n)

    def _with_own(self, joined: str, embedded: str) -> str:
        """The streams behind the first, plus what the layer's own embeddings make of the active."""
        builder, block, size = self._builder, self.block, self.streams.config.hidden_size
        active = self.streams.spec.active
        x = self.streams.taken(joined, active, block.value("corrected.active"))
        if self.streams.spec.scaled:
            factor = block.weight("stream_scale", (size,))
            x = builder.op("weigh", (x,), block.value("corrected.scaled"), (factor,))
        both, rest = (joined, block.own(x, embedded)), {"width": size, "first": 1}
        return builder.op("add_to_streams", both, block.value("streams"), (), **rest)

    def _before(self, x: str, part: str) -> str:
        return self.block.norm(x, f"{part}_norm") if self.streams.config.block.pre_norms else x

    def _behind(self, x: str, part: str) -> str:
        return (
            self.block.norm(x, f"{part}_post_norm") if self.streams.config.block.post_norms else x
        )

    @property
    def _builder(self) -> Builder:
        return self.streams.builder

    def _add(self, x: str, y: str, out: str) -> str:
        return self._builder.op("add", (x, y), self.block.value(out))
