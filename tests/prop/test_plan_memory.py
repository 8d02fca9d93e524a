"""Arena offsets: no two values alive at the same time share a byte, whatever the program."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.ir.builder import Builder
from kvasir.ir.memory import ALIGN, plan_memory, value_bytes
from kvasir.ir.phases import phases
from kvasir.ir.program import Program

MAXIMA = {"T": 6, "R": 2, "P": 12}


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random graphs of adds, casts and row selections over rows of a few widths."""
    b = Builder("random")
    tokens = b.input("tokens", ("T",), "i32")
    picks = b.input("logit_rows", ("R",), "i32")
    widths = draw(st.lists(st.sampled_from([32, 64, 96]), min_size=1, max_size=3))
    pool = {
        k: [b.op("embed", (tokens,), f"x{i}", (b.weight(f"w{i}", (4, k)),), scale=1.0)]
        for i, k in enumerate(dict.fromkeys(widths))
    }
    outputs: list[str] = []
    for i in range(draw(st.integers(1, 25))):
        k = draw(st.sampled_from(sorted(pool)))
        a, c = draw(st.sampled_from(pool[k])), draw(st.sampled_from(pool[k]))
        kind = draw(st.sampled_from(["add", "add", "add", "cast", "gather"]))
        if kind == "add":
            pool[k].append(b.op("add", (a, c), f"v{i}"))
        elif kind == "cast":
            outputs.append(b.op("cast", (a,), f"v{i}", to="q8", block=32))
        else:
            outputs.append(b.op("gather_rows", (a, picks), f"v{i}"))
    return b.build((*outputs[-1:], pool[widths[0]][-1]))


def alive(program: Program, name: str) -> set[int]:
    """Phases in which a value must keep its bytes, from the definition."""
    order = phases(program)
    touched = {
        phase
        for op, phase in zip(program.ops, order, strict=True)
        if name in op.ins or name in op.outs
    }
    last = max(order) if name in program.outputs else max(touched)
    return set(range(min(touched), last + 1))


@settings(max_examples=120, deadline=None)
@given(programs())
def test_values_alive_together_do_not_overlap(program: Program) -> None:
    plan = plan_memory(program, MAXIMA)
    made = [name for op in program.ops for name in op.outs]
    assert sorted(plan.offsets) == sorted(made)
    spans = {
        name: (plan.offsets[name], plan.offsets[name] + value_bytes(program.values[name], MAXIMA))
        for name in made
    }
    for first, second in combinations(made, 2):
        if alive(program, first) & alive(program, second):
            (a, b), (c, d) = spans[first], spans[second]
            assert b <= c or d <= a, f"{first} and {second} overlap"
    assert all(begin % ALIGN == 0 and end <= plan.size for begin, end in spans.values())


@settings(max_examples=60, deadline=None)
@given(programs())
def test_the_arena_is_no_larger_than_all_values(program: Program) -> None:
    plan = plan_memory(program, MAXIMA)
    total = sum(value_bytes(program.values[name], MAXIMA) for op in program.ops for name in op.outs)
    largest = max(
        value_bytes(program.values[name], MAXIMA) for op in program.ops for name in op.outs
    )
    assert largest <= plan.size <= total


def test_a_chain_needs_two_buffers() -> None:
    b = Builder("chain")
    x = b.op(
        "embed", (b.input("tokens", ("T",), "i32"),), "x", (b.weight("w", (4, 64)),), scale=1.0
    )
    for i in range(9):
        x = b.op("scale", (x,), f"v{i}", factor=1.0, softcap=0.0)
    rows = int(np.prod([MAXIMA["T"], 64])) * 4
    assert plan_memory(b.build((x,)), MAXIMA).size == 2 * rows
