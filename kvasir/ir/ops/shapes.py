"""Shape rules as text: what an op reads, the weights that it has, and what it gives.

    *[r,k] | [n,k] [n]? -> [r,n]

An operand has a type, f32 where none is said and any where it is "*", and axes. A letter is the
axis that it first stands for, a word an attribute of the op, which is more than 0; numbers and the
symbols of ``ir.program`` are themselves. Weights are behind "|"; what ends with "?" may be missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvasir.ir.ops.checks import ShapeError
from kvasir.ir.ops.types import Types, Values, Weights
from kvasir.ir.program import SYMBOLS, Dim, Op, TensorType, Value, Weight


class _Operand(NamedTuple):
    text: str
    dtype: str
    axes: tuple[Dim, ...]

    @classmethod
    def of(cls, text: str) -> _Operand:
        dtype, _, axes = text.removesuffix("?").removesuffix("]").partition("[")
        dims = (int(x) if x.isdecimal() else x for x in axes.split(","))
        return cls(text, dtype or "f32", tuple(dims))


class ShapeRule:
    """Gives the types of an op's outputs; raises ShapeError on operands that do not fit."""

    def __init__(self, text: str) -> None:
        given, outs = text.split("->")
        ins, _, weights = given.partition("|")
        parts = [tuple(map(_Operand.of, part.split())) for part in (ins, weights, outs)]
        self._ins, self._weights, self._outs = parts
        self.n_ins, self.n_weights = _bounds(self._ins), _bounds(self._weights)

    def __call__(self, op: Op, ins: Values, weights: Weights) -> Types:
        known: dict[Dim, Dim] = {}
        for wanted, value in zip(self._ins, ins, strict=False):
            if wanted.dtype not in ("*", value.dtype):
                raise ShapeError(f"{value.name} is {value.dtype}, expected {wanted.text}")
            _bind(op, wanted, value, known)
        for wanted, weight in zip(self._weights, weights, strict=False):
            _bind(op, wanted, weight, known)
        return tuple(
            [
                TensorType(tuple([_axis(op, x, known, 0) for x in out.axes]), out.dtype)
                for out in self._outs
            ]
        )


def _bounds(operands: Sequence[_Operand]) -> tuple[int, int]:
    return sum(not x.text.endswith("?") for x in operands), len(operands)


def _bind(op: Op, wanted: _Operand, found: Value | Weight, known: dict[Dim, Dim]) -> None:
    if len(found.shape) != len(wanted.axes):
        raise ShapeError(f"{found.name} is {found.shape}, expected {wanted.text}")
    for axis, own in zip(wanted.axes, found.shape, strict=True):
        if _axis(op, axis, known, own) != own:
            shape = tuple(known.get(x, x) for x in wanted.axes)
            raise ShapeError(f"{found.name} is {found.shape}, expected {shape}")


def _axis(op: Op, axis: Dim, known: dict[Dim, Dim], own: Dim) -> Dim:
    """``own``: of a letter that is new."""
    if axis in known:
        return known[axis]
    if isinstance(axis, int) or axis in SYMBOLS:
        return axis
    if len(axis) > 1:
        own = op.integer(axis)
        if own <= 0:
            raise ShapeError(f"{axis}={own}, expected more than 0")
    known[axis] = own
    return own
