"""The plan checker refuses what would read or write what it may not."""

from __future__ import annotations

import pytest
from msgspec import structs

from kvasir.core.errors import KvasirError
from kvasir.core.groups import KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import Copy, Move, RowOutput, SlotOpen, StepPlan, Transfer
from kvasir.core.sizes import EngineSizes
from kvasir.exec.checker import PlanChecker, marks_of
from tests.planned import Marks, Placed, placed, step_plan

PARAMS = TokenParams(seed=1, max_tokens=9, temperature=0.0)
TOKENS = tuple(range(10, 20))
"""Two blocks of 4 and a half."""


def opened(slot: int = 0, tokens: tuple[int, ...] = TOKENS) -> SlotOpen:
    return SlotOpen(slot, PARAMS, tokens)


def row(slot: int, start: int, stop: int, blocks: tuple[int, ...]) -> Placed:
    return placed(slot, start, TOKENS[start:stop], (blocks,))


def sizes(window: int = 0) -> EngineSizes:
    """Eight blocks of 4 tokens."""
    windows = (KVGroup(8, window),) if window else ()
    return EngineSizes(30, 32, 3, 16, 0 if window else 8, 4, windows)


def ran(*plans: StepPlan, window: int = 0) -> PlanChecker:
    """After plans that drew 7 everywhere."""
    checker = PlanChecker(sizes(window))
    for plan in plans:
        checker.check(plan)
        checker.drew((RowOutput(7),) * plan.n_logits)
    return checker


FIRST = step_plan(0, (row(0, 0, 9, (0, 1, 2)),), (opened(),))
"""Tokens 0 to 8 in blocks 0, 1 and 2."""


def test_a_plan_that_reads_what_was_written_for_it_is_right() -> None:
    ran(FIRST, step_plan(1, (row(0, 9, 10, (0, 1, 2)),)))
    hit = step_plan(1, (row(1, 8, 10, (0, 1, 3)),), (opened(1),))
    ran(FIRST, hit)
    part = step_plan(1, (row(1, 6, 10, (0, 4, 3)),), (opened(1),), copies=(Copy((1,), (4,), 2),))
    ran(FIRST, part)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (step_plan(1, (row(0, 9, 10, (0, 3, 2)),)), "entry 4 in block 3, which was never written"),
        (step_plan(1, (row(0, 9, 10, (1, 0, 2)),)), "entry 0 in block 1, which stands for other"),
        (step_plan(1, (row(1, 0, 10, (3, 4, 5)),)), "slot 1 goes on at 0 of none"),
        (step_plan(1, (placed(0, 11, (7,), ((0, 1, 2),)),)), "slot 0 goes on at 11, 10 are known"),
        (
            step_plan(1, (row(1, 6, 10, (0, 4, 3)),), (opened(1),)),
            "entry 4 in block 4, which was never written",
        ),
        (
            step_plan(1, (row(1, 6, 10, (0, 4, 3)),), (opened(1),), copies=(Copy((5,), (4,), 2),)),
            "reads entries that nobody wrote",
        ),
        (
            step_plan(1, (row(1, 7, 10, (0, 4, 3)),), (opened(1),), copies=(Copy((1,), (4,), 2),)),
            "entry 6 in block 4, which was never written",
        ),
        (
            step_plan(1, (row(0, 9, 10, (0, 1, 2)),), moves=(Move(0, 11, 9),)),
            "reads an entry that nobody wrote",
        ),
        (
            step_plan(1, (row(1, 0, 10, (0, 1, 2)),), (opened(1, TOKENS[::-1]),)),
            "computes other tokens from 0 on",
        ),
    ],
)
def test_a_reader_needs_the_right_writer(plan: StepPlan, message: str) -> None:
    with pytest.raises(KvasirError, match=f"invalid plan: .*{message}"):
        ran(FIRST, plan)


def loading(block: int, *copies: Copy, blocks: tuple[int, ...]) -> StepPlan:
    """Slot 1 goes on after what was copied, slot 2 after what was loaded to ``block``."""
    rows = (row(1, 6, 10, blocks), placed(2, 4, (9,), ((block, 7),)))
    opens = (opened(1), opened(2, (1, 2, 3, 4, 9)))
    loads = (Transfer(b"name", 0, block),)
    return step_plan(1, rows, opens, copies=copies, loads=loads)


STORE = Marks(name=bytes(marks_of((1, 2, 3, 4))))


def test_a_block_that_is_read_is_not_loaded_before() -> None:
    copy = Copy((1,), (4,), 2)
    ran(FIRST).check(loading(6, copy, blocks=(0, 4, 3)), STORE)
    with pytest.raises(KvasirError, match="entry 4 in block 4, which stands for other tokens"):
        ran(FIRST).check(loading(1, copy, blocks=(0, 4, 3)), STORE)
    with pytest.raises(KvasirError, match=r"block 0, .*; a load of this plan wrote it"):
        ran(FIRST).check(loading(0, copy, blocks=(0, 4, 3)), STORE)
    with pytest.raises(KvasirError, match="nothing was loaded"):
        ran(FIRST).check(loading(6, copy, blocks=(0, 4, 3)), Marks(name=bytes(32)))
    with pytest.raises(KvasirError, match="step 1 saves or loads blocks without a store"):
        ran(FIRST).check(loading(6, copy, blocks=(0, 4, 3)))


def test_a_block_has_one_writer() -> None:
    copy = Copy((1,), (4,), 2)
    for plan, message in (
        (loading(4, copy, blocks=(0, 4, 3)), "a load and a copy write block 4"),
        (loading(6, copy, copy, blocks=(0, 4, 3)), "a copy and another copy write block 4"),
        (loading(3, copy, blocks=(0, 4, 3)), "a load and a row write block 3"),
    ):
        with pytest.raises(KvasirError, match=message):
            ran(FIRST).check(plan, STORE)
    twice = loading(6, copy, blocks=(0, 4, 3))
    twice = structs.replace(twice, loads=twice.loads * 2)
    with pytest.raises(KvasirError, match="a load and another load write block 6"):
        ran(FIRST).check(twice, STORE)


def test_a_window_reads_its_last_entries_only() -> None:
    checker = ran(FIRST, window=3)
    checker.check(step_plan(1, (row(0, 9, 10, (-1, 1, 2)),)))
    with pytest.raises(KvasirError, match="entry 7 in block 5, which was never written"):
        ran(FIRST, window=3).check(step_plan(1, (row(0, 9, 10, (-1, 5, 2)),)))


def test_what_was_drafted_and_drawn_is_known() -> None:
    """8, 7, 7 follow token 9; of these 7 and 7 are drawn, and moved to their places."""
    draft = placed(0, 9, (TOKENS[9], 8, 7, 7), ((0, 1, 2, 3),), n_logits=4, parents=(-1, 0, 0, 2))
    moves = (Move(0, 11, 10), Move(0, 12, 11))
    after = placed(0, 12, (7,), ((0, 1, 2, 3),))
    ran(FIRST, step_plan(1, (draft,)), step_plan(2, (after,), moves=moves))
    with pytest.raises(KvasirError, match="entry 10 in block 2, which stands for other tokens"):
        ran(FIRST, step_plan(1, (draft,)), step_plan(2, (after,)))


def test_what_is_saved_takes_along_what_it_stands_for() -> None:
    checker, other = ran(FIRST), PlanChecker(sizes())
    store = Marks(name=checker.read_block(0, 0))
    hit = placed(0, 4, TOKENS[4:], ((5, 6, 7),))
    load = (Transfer(b"name", 0, 5),)
    other.check(step_plan(0, (hit,), (opened(),), loads=load), store)
    store.put(b"name", checker.read_block(0, 1))
    with pytest.raises(KvasirError, match="entry 0 in block 5, which stands for other tokens"):
        other.check(step_plan(0, (hit,), (opened(),), loads=load), store)
