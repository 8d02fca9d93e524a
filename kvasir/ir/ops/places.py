"""Positions of more than one axis: angles of rope, and rows between those of a table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.ir.ops.base import BOTH, attrs_of, defines, per_element
from kvasir.ir.ops.checks import require, require_shape, require_type
from kvasir.ir.ops.types import Arrays, Env, Inputs, Outputs, Types, Values, Weights
from kvasir.ir.program import Op, TensorType

AXES = 3
"""Of positions of rope: time, height, width."""
CORNERS = 4
"""Rows of a table around a place: above and below, of each the left and the right one."""
_ANGLES = attrs_of(table=str, rotary_dim=int, sections=tuple, woven=bool)


def axes_of(sections: tuple[int, ...], woven: bool) -> NDArray[np.int64]:
    """Of each pair the axis that it turns by. ``sections``: pairs of each. One behind the other
    (M-RoPE, Wang et al. 2024); or woven: every third pair is of one axis while there are some left,
    and of the first then."""
    n = sum(sections)
    if not woven:
        return np.repeat(np.arange(AXES), sections)
    axes = np.arange(n) % AXES
    return np.where(np.arange(n) < AXES * np.array(sections)[axes], axes, 0)


def _angles_infer(op: Op, ins: Values, weights: Weights) -> Types:
    sections, rotary = op.attrs["sections"], op.integer("rotary_dim")
    fits = isinstance(sections, tuple) and len(sections) == AXES and 2 * sum(sections) == rotary
    require(fits, f"sections={sections}, expected {AXES} that add up to half of {rotary}")
    require_type(ins[0], "i32")
    require_shape(ins[0], (ins[0].shape[0], AXES))
    return (TensorType((ins[0].shape[0], rotary)),)


@defines(BOTH, _angles_infer, attrs=_ANGLES, flops=per_element(0))
def angles(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Rows of a rope's table of which each pair is from the position on its own axis [T, 3]."""
    sections = op.attrs["sections"]
    assert isinstance(sections, tuple)
    axes, table = axes_of(sections, op.flag("woven")), env.constants[op.word("table")]
    at, pairs = ins[0][:, axes], np.arange(len(axes))
    return (np.concatenate([table[at, pairs], table[at, pairs + len(axes)]], axis=1),)


@defines(BOTH, "i32[r,4] [r,4] | [n,c] -> [r,c]", flops=per_element(7))
def between(op: Op, ins: Inputs, weights: Arrays, env: Env) -> Outputs:
    """Of four rows of a table [T, 4] their shares [T, 4], each product rounded, added in order."""
    corners, shares = ins
    parts = [weights[0][corners[:, i]] * shares[:, i : i + 1] for i in range(CORNERS)]
    return (((parts[0] + parts[1]) + parts[2]) + parts[3],)


DEFS = (angles, between)
