"""Records ops into a program; the shape rule of each op gives the types of its outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from kvasir.ir.ops import OPS, ShapeError
from kvasir.ir.ops.checks import width
from kvasir.ir.program import (
    Attr,
    Dim,
    FloatArray,
    KVSpec,
    Op,
    Program,
    TensorType,
    Value,
    Weight,
    freeze,
)

WeightMaker = Callable[[str, tuple[int, ...]], Weight]


class Builder:
    """``weight_of(name, shape)`` says where a weight comes from; by default from nowhere."""

    def __init__(self, name: str, weight_of: WeightMaker = Weight) -> None:
        self._name = name
        self._weight_of = weight_of
        self._ops: list[Op] = []
        self._values: dict[str, Value] = {}
        self._weights: dict[str, Weight] = {}
        self._kv: list[KVSpec] = []
        self._constants: dict[str, FloatArray] = {}
        self._inputs: list[str] = []

    def input(self, name: str, shape: tuple[Dim, ...], dtype: str) -> str:
        self._define(name, TensorType(shape, dtype))
        self._inputs.append(name)
        return name

    def weight(self, name: str, shape: tuple[int, ...]) -> str:
        """Declares a weight; the same name again is the same weight. Raises ShapeError."""
        known = self._weights.get(name)
        if known is not None and known.shape != shape:
            raise ShapeError(f"weight {name} is declared as {known.shape} and as {shape}")
        if known is None:
            self._weights[name] = self._weight_of(name, shape)
        return name

    def constant(self, name: str, array: FloatArray) -> str:
        self._constants[name] = array
        return name

    def kv(self, spec: KVSpec) -> None:
        self._kv.append(spec)

    def op(
        self,
        kind: str,
        ins: tuple[str, ...],
        out: str,
        weights: tuple[str, ...] = (),
        **attrs: Attr,
    ) -> str:
        """Records an op with one output named ``out`` and gives that name."""
        self.ops(kind, ins, (out,), weights, **attrs)
        return out

    def ops(
        self,
        kind: str,
        ins: tuple[str, ...],
        outs: tuple[str, ...],
        weights: tuple[str, ...] = (),
        **attrs: Attr,
    ) -> None:
        """Records an op with any number of outputs. Raises ShapeError naming the op."""
        op = Op(kind, ins, outs, weights, freeze(attrs))
        for name, type_ in zip(outs, output_types(op, self._values, self._weights), strict=True):
            self._define(name, type_)
        self._ops.append(op)

    def columns(self, name: str) -> int:
        """Columns of a recorded value."""
        return width(self._values[name])

    def build(self, outputs: tuple[str, ...]) -> Program:
        return Program(
            self._name,
            tuple(self._ops),
            MappingProxyType(dict(self._values)),
            MappingProxyType(dict(self._weights)),
            tuple(self._kv),
            MappingProxyType(dict(self._constants)),
            tuple(self._inputs),
            outputs,
        )

    def _define(self, name: str, type_: TensorType) -> None:
        if name in self._values:
            raise ShapeError(f"value {name} is defined twice")
        self._values[name] = Value(name, *type_)


def output_types(
    op: Op, values: Mapping[str, Value], weights: Mapping[str, Weight]
) -> tuple[TensorType, ...]:
    """What the shape rule of ``op`` says; ShapeError messages start with the op."""
    try:
        ins = [values[name] for name in op.ins]
        return OPS[op.kind].infer(op, ins, [weights[name] for name in op.weights])
    except ShapeError as error:
        raise ShapeError(f"{op.kind} -> {', '.join(op.outs)}: {error}") from None
