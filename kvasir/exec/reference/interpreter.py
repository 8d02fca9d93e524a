"""A loop over the ops."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvasir.ir.ops import OPS, Env, Rows
from kvasir.ir.program import FloatArray, Op, Program

Observer = Callable[[Op, tuple[Rows, ...]], None]
"""Called after each op with its outputs."""


def interpret(
    program: Program,
    inputs: Mapping[str, Rows],
    weights: Mapping[str, FloatArray],
    env: Env,
    *,
    until: str | None = None,
    observe: Observer | None = None,
) -> dict[str, Rows]:
    """Runs a program of any stage and gives all its values.

    ``until`` names a value: the op that makes it is the last to run. Raises KeyError when no op
    makes it.
    """
    if until is not None and not any(until in op.outs for op in program.ops):
        raise KeyError(f"no op of {program.name} makes {until}")
    values: dict[str, Rows] = dict(inputs)
    for op in program.ops:
        ins = [values[name] for name in op.ins]
        outs = OPS[op.kind].reference(op, ins, [weights[name] for name in op.weights], env)
        values.update(zip(op.outs, outs, strict=True))
        if observe is not None:
            observe(op, outs)
        if until in op.outs:
            break
    return values
