"""Arena offsets from lifetimes: values that are never alive in the same phase share bytes."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import msgspec

from kvasir.ir.bundle import GIVEN_INPUTS, Bundle, as_bundle
from kvasir.ir.numerics import GROUP
from kvasir.ir.phases import phases
from kvasir.ir.program import Program, Value

ALIGN = 64
ITEM_BYTES = {"f32": 4, "i32": 4, "bf16": 2}


class MemoryPlan(msgspec.Struct, frozen=True):
    """Byte offset of every value that an op makes, and of inputs that are written into the arena
    (others lie elsewhere), and bytes in all."""

    offsets: Mapping[str, int]
    size: int


def aligned(n_bytes: int) -> int:
    return -(-n_bytes // ALIGN) * ALIGN


def plane_bytes(value: Value, maxima: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes of each plane: one, or for q8 int8 data, f32 scales and int32 sums in this order."""
    shape = [maxima[dim] if isinstance(dim, str) else dim for dim in value.shape]
    if value.dtype != "q8":
        return (prod(shape) * ITEM_BYTES[value.dtype],)
    rows, k = shape
    return rows * k, rows * (k // value.block) * 4, rows * (k // GROUP) * 8


def value_bytes(value: Value, maxima: Mapping[str, int]) -> int:
    """Bytes in the arena, each plane aligned."""
    return sum(aligned(n_bytes) for n_bytes in plane_bytes(value, maxima))


def lifetimes(program: Program) -> dict[str, tuple[int, int]]:
    """First and last phase, both included, in which each made value is needed.

    Outputs, and what logit rows are gathered from, live to the end.
    """
    order = phases(program)
    last_phase = max(order, default=0)
    spans = {name: (0, 0) for name in program.inputs if name in GIVEN_INPUTS}
    for op, phase in zip(program.ops, order, strict=True):
        spans |= {name: (phase, phase) for name in op.outs}
        for name in op.ins:
            if name in spans:
                spans[name] = (spans[name][0], max(spans[name][1], phase))
    # the ops after a gather run once for each tile of logit rows
    reread = [op.ins[0] for op in program.ops if op.kind == "gather_rows" and op.ins[0] in spans]
    for name in (*program.outputs, *reread):
        spans[name] = (spans[name][0], last_phase)
    return spans


def _spans(bundle: Bundle) -> dict[str, tuple[int, int]]:
    """``lifetimes`` of programs that run one after the other: what one exports lives to the end,
    because a later one may run again and again."""
    spans: dict[str, tuple[int, int]] = {}
    begin = 0
    for program in bundle.programs.values():
        spans |= {x: (a + begin, b + begin) for x, (a, b) in lifetimes(program).items()}
        begin = 1 + max((last for _, last in spans.values()), default=-1)
    return spans | {name: (spans[name][0], begin) for name in bundle.exports}


def plan_memory(programs: Program | Bundle, maxima: Mapping[str, int]) -> MemoryPlan:
    """One arena. Largest value first, each at the lowest offset that no value alive at the same
    time covers.

    ``maxima`` gives the largest value of every symbol ("T", "R", "P").
    """
    bundle = as_bundle(programs)
    spans = _spans(bundle)
    values = {x: value for p in bundle.programs.values() for x, value in p.values.items()}
    sizes = {name: value_bytes(values[name], maxima) for name in spans}
    offsets: dict[str, int] = {}
    for name in sorted(spans, key=lambda item: (-sizes[item], spans[item], item)):
        first, last = spans[name]
        busy = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in offsets
            if spans[other][0] <= last and first <= spans[other][1]
        )
        offset = 0
        for begin, end in busy:
            if begin - offset >= sizes[name]:
                break
            offset = max(offset, end)
        offsets[name] = offset
    return MemoryPlan(offsets, max((offsets[name] + sizes[name] for name in offsets), default=0))
