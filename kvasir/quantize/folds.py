"""Which inputs of linears can be scaled without changing a model: those whose scales fit into a
norm's weight before them, the rows of up before down, or the rows of v before o."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator

import msgspec

from kvasir.ir.program import Op, Program

_NORMS = ("norm", "layer_norm")
_CLAMPED = "clamped_swiglu"
"""An activation that up does not go into as a factor."""
_OFFSETS = {(): 0.0, ("plus_one",): 1.0}
"""By the steps of a norm's tensor: what is added to its elements."""


class Fold(msgspec.Struct, frozen=True):
    """Inputs that matrices read together, and what makes them: columns of ``readers`` times s and
    rows (or elements) of ``givers`` over s are the same model."""

    value: str
    """Of the program."""
    readers: tuple[str, ...]
    """Tensors of matrices."""
    givers: tuple[str, ...]
    """Tensors of a norm, or of a matrix and its bias."""
    offset: float = 0.0
    """A norm's weight is its first tensor plus this."""
    is_norm: bool = True
    heads: tuple[int, int] | None = None
    """Of v and o: how many heads of queries share one of values, and its size."""


def folds_of(program: Program, quantized: Collection[str]) -> tuple[Fold, ...]:
    """In the order of the program; every reader is among ``quantized``."""
    graph = _Dataflow(program, frozenset(quantized))
    found = (graph.fold(value) for op in program.ops for value in op.outs)
    return tuple(x for x in found if x is not None)


class _Dataflow:
    def __init__(self, program: Program, quantized: frozenset[str]) -> None:
        self._program, self._quantized = program, quantized
        self._maker = {value: op for op in program.ops for value in op.outs}
        self._reading: dict[str, list[Op]] = defaultdict(list)
        self._uses: dict[str, int] = defaultdict(int)
        """Of tensors, by ops."""
        for op in program.ops:
            for value in op.ins:
                self._reading[value].append(op)
            for name in op.weights:
                for tensor in program.weights[name].sources:
                    self._uses[tensor] += 1

    def fold(self, value: str) -> Fold | None:
        readers = tuple(self._readers(value))
        if not readers or not all(readers) or value in self._program.outputs:
            return None
        maker = self._maker[value]
        if maker.kind in _NORMS:
            return self._of_norm(value, maker, readers)
        if maker.kind == "gated_act" and maker.word("act") != _CLAMPED:
            return self._of_rows(value, maker.ins[1], readers, None)
        return self._of_values(value, maker, readers) if maker.kind == "attention" else None

    def _readers(self, value: str) -> Iterator[str]:
        """Of each op that reads it the tensor of its matrix; empty for what is no such linear."""
        for op in self._reading[value]:
            tensor = self._alone(op.weights[0]) if op.kind == "linear" else ""
            yield tensor if tensor in self._quantized else ""

    def _alone(self, name: str) -> str:
        """The tensor of a weight that nothing else is made of; else empty."""
        sources = self._program.weights[name].sources
        return sources[0] if len(sources) == 1 and self._uses[sources[0]] == 1 else ""

    def _steps(self, name: str) -> tuple[str, ...]:
        return tuple(x.name for x in self._program.weights[name].transforms)

    def _of_norm(self, value: str, norm: Op, readers: tuple[str, ...]) -> Fold | None:
        givers = tuple(map(self._alone, norm.weights))
        offset = _OFFSETS.get(self._steps(norm.weights[0])) if norm.weights else None
        if offset is None or not all(givers) or any(map(self._steps, norm.weights[1:])):
            return None
        return Fold(value, readers, givers, offset)

    def _of_rows(
        self, value: str, given: str, readers: tuple[str, ...], heads: tuple[int, int] | None
    ) -> Fold | None:
        """``given``: what a linear gives, for one op alone."""
        linear = self._maker.get(given)
        if linear is None or linear.kind != "linear" or len(self._reading[given]) > 1:
            return None
        givers = tuple(map(self._alone, linear.weights))
        if not all(givers) or any(map(self._steps, linear.weights)):
            return None
        return Fold(value, readers, givers, is_norm=False, heads=heads)

    def _of_values(self, value: str, op: Op, readers: tuple[str, ...]) -> Fold | None:
        """``op``: an attention that alone reads the keys and values of a layer."""
        layer = op.integer("layer")
        ops = self._program.ops
        alike = [x for x in ops if x.kind == op.kind and x.integer("layer") == layer]
        writers = [x for x in ops if x.kind == "kv_write" and x.integer("layer") == layer]
        if len(alike) > 1 or len(writers) != 1:
            return None
        n_heads, n_kv_heads, dim = op.integers("n_heads", "n_kv_heads", "head_dim")
        return self._of_rows(value, writers[0].ins[1], readers, (n_heads // n_kv_heads, dim))
