"""Phases: ops that do not depend on each other, between two barriers."""

from __future__ import annotations

from kvasir.ir.program import KV_READERS, KV_WRITERS, Program


def phases(program: Program) -> tuple[int, ...]:
    """Phase of each op: one past the last that it needs, through values or a layer's cache. What is
    gathered for logits comes behind all before it: it runs once for each tile of logit rows, and
    where there are none not at all."""
    made: dict[str, int] = {}
    written: dict[int, int] = {}
    result: list[int] = []
    for op in program.ops:
        needs = [made[name] for name in op.ins if name in made]
        if op.kind in KV_READERS:
            needs.append(written[op.integer("layer")])
        if op.kind == "gather_rows":
            needs += result
        phase = max(needs, default=-1) + 1
        if op.kind in KV_WRITERS:
            written[op.integer("layer")] = phase
        made |= dict.fromkeys(op.outs, phase)
        result.append(phase)
    return tuple(result)
