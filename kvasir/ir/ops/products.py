"""Products of rows: with columns of other rows, with a vector, and of routing weights."""

from __future__ import annotations

import numpy as np

from kvasir.ir.ops.base import BOTH, attrs_of, defines, f32, per_element
from kvasir.ir.ops.checks import require, require_type, width
from kvasir.ir.ops.types import Arrays, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import Op, TensorType


def _mul_columns_infer(op: Op, ins: Values, weights: Weights) -> Types:
    first, end = op.integer("column"), op.integer("column") + width(ins[0])
    for value in ins:
        require_type(value, "f32")
    require(ins[0].shape[0] == ins[1].shape[0], f"rows of {ins[0].name} and {ins[1].name} differ")
    require(first >= 0 and end <= width(ins[1]), f"columns {first} … {end} of {width(ins[1])}")
    return (TensorType(ins[0].shape),)


@defines(BOTH, _mul_columns_infer, n_ins=(2, 2), attrs=attrs_of(column=int), flops=per_element(1))
def mul_columns(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows times as many columns of other rows, from ``column`` on."""
    first = op.integer("column")
    return (f32(ins[0] * ins[1][:, first : first + ins[0].shape[1]]),)


@defines(BOTH, "[r,c] | [c] -> [r,c]", flops=per_element(1))
def weigh(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Each column of rows times its own factor."""
    return (f32(ins[0] * weights[0]),)


@defines(BOTH, "[r,k] i32[r,k] | [n] -> [r,k]", flops=per_element(1))
def weigh_experts(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Routing weights times a factor of the expert that each belongs to."""
    return (f32(ins[0] * weights[0][ins[1].astype(np.int64)]),)


@defines(BOTH, "[r,c] | [c] -> [r,c]", flops=per_element(1))
def gather_columns(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows with the columns that the vector names, each in its place."""
    return (f32(ins[0][:, weights[0].astype(np.int64)]),)


DEFS = (mul_columns, weigh, weigh_experts, gather_columns)
