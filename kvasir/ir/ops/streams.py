"""Rows of several streams side by side (AltUp, Baykal et al. 2023), and a gate of which only the
largest numbers count."""

from __future__ import annotations

import numpy as np

from kvasir.ir.numerics import wide
from kvasir.ir.ops.base import BOTH, attrs_of, defines, f32, per_element
from kvasir.ir.ops.checks import require, require_shape, require_type, width
from kvasir.ir.ops.rows import gated
from kvasir.ir.ops.types import Arrays, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import Op, TensorType


def _take_infer(op: Op, ins: Values, weights: Weights) -> Types:
    require_type(ins[0], "f32")
    first, n = op.integers("column", "width")
    fits = first >= 0 and n > 0 and first + n <= width(ins[0])
    require(fits, f"columns {first} … {first + n} of {width(ins[0])}")
    return (TensorType((ins[0].shape[0], n)),)


@defines(BOTH, _take_infer, attrs=attrs_of(column=int, width=int), flops=per_element(0))
def take_columns(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """``width`` columns of rows, from ``column`` on."""
    first, n = op.integers("column", "width")
    return (f32(ins[0][:, first : first + n]),)


def _streams(op: Op, ins: Values) -> int:
    """How many of ``width`` columns each the first input has."""
    for value in ins:
        require_type(value, "f32")
        require(value.shape[0] == ins[0].shape[0], f"rows of {ins[0].name}, {value.name} differ")
    n, left = divmod(width(ins[0]), op.integer("width"))
    require(n > 0 and not left, f"{ins[0].name}: no streams of {op.integer('width')} columns")
    return n


def _mix_infer(op: Op, ins: Values, weights: Weights) -> Types:
    n = _streams(op, ins)
    require_shape(ins[1], (ins[0].shape[0], n * n))
    return (TensorType(ins[0].shape),)


@defines(BOTH, _mix_infer, n_ins=(2, 2), attrs=attrs_of(width=int), flops=per_element(8))
def mix_streams(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Each of n streams plus all of them, each times a share: i adds n i + j times j."""
    n = ins[0].shape[1] // op.integer("width")
    x = wide(ins[0]).reshape(len(ins[0]), n, -1)
    mixed = wide(ins[1]).reshape(-1, n, n) @ x + x
    return (f32(mixed.reshape(ins[0].shape)),)


def _correct_infer(op: Op, ins: Values, weights: Weights) -> Types:
    n, size, rows = _streams(op, ins), op.integer("width"), ins[0].shape[0]
    require_shape(ins[1], (rows, size))
    require_shape(ins[2], (rows, n))
    require(0 <= op.integer("active") < n, f"active={op.integer('active')} of {n} streams")
    return (TensorType(ins[0].shape),)


@defines(
    BOTH,
    _correct_infer,
    n_ins=(3, 3),
    attrs=attrs_of(width=int, active=int),
    flops=per_element(3),
)
def correct_streams(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Streams, each plus what rows differ from stream ``active``, times one plus its share."""
    x = wide(ins[0]).reshape(len(ins[0]), ins[2].shape[1], -1)
    more = wide(ins[1]) - x[:, op.integer("active")]
    x = x + (wide(ins[2]) + 1.0)[:, :, None] * more[:, None]
    return (f32(x.reshape(ins[0].shape)),)


def _add_to_infer(op: Op, ins: Values, weights: Weights) -> Types:
    n, first = _streams(op, ins), op.integer("first")
    require_shape(ins[1], (ins[0].shape[0], op.integer("width")))
    require(0 <= first < n, f"first={first} of {n} streams")
    return (TensorType(ins[0].shape),)


@defines(
    BOTH,
    _add_to_infer,
    n_ins=(2, 2),
    attrs=attrs_of(width=int, first=int),
    flops=per_element(1),
)
def add_to_streams(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Streams, of which those from ``first`` on plus rows."""
    x = ins[0].reshape(len(ins[0]), -1, op.integer("width")).copy()
    x[:, op.integer("first") :] += ins[1][:, None]
    return (f32(x.reshape(ins[0].shape)),)


@defines(BOTH, "[r,c] [r,c] -> [r,c]", attrs=attrs_of(eps=float), flops=per_element(6))
def match_rows(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows times the root mean square of others, over their own; of the mean ``eps`` at least."""
    own, like = ((wide(x) ** 2).mean(axis=1, keepdims=True) for x in ins)
    return (f32(wide(ins[0]) * np.sqrt(like) / np.sqrt(np.maximum(own, op.number("eps")))),)


@defines(
    BOTH,
    "[r,c] [r,c] -> [r,c]",
    attrs=attrs_of(deviations=float, act=str),
    flops=per_element(14),
)
def sparse_gate(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """act(gate) * up, of a gate that is what it has above its mean and so many of its standard
    deviations, and 0 elsewhere: a share of a normal distribution."""
    gate = wide(ins[0])
    cut = gate.mean(axis=1, keepdims=True) + op.number("deviations") * gate.std(
        axis=1, keepdims=True
    )
    return (gated(np.maximum(gate - cut, 0.0), wide(ins[1]), op.word("act")),)


DEFS = (take_columns, mix_streams, correct_streams, add_to_streams, match_rows, sparse_gate)
