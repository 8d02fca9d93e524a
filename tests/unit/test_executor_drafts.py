"""Rows that ask the executor for drafts, and rows that verify them."""

from __future__ import annotations

from functools import partial

import pytest

from kvasir.core.drawn import Drawn
from kvasir.core.errors import KvasirError
from kvasir.core.params import TokenParams
from kvasir.core.plan import MAX_DRAFTS, Row, RowOutput, SlotOpen, StepPlan, StepResult, reference
from kvasir.core.request import EngineRequest
from kvasir.exec.checker import PlanChecker
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.executor import ExecutorProposer
from tests.planned import placed, step_plan
from tests.sizes import changed, config_of

CONFIG = config_of(64, 2, 16, 8, 8, vocab_size=97, max_draft_tokens=3)
PROMPT = (5, 6, 7)


def scheduler(max_tokens: int = 20, **changes: int) -> Scheduler:
    made = Scheduler(changed(CONFIG, **changes), ExecutorProposer())
    made.add(EngineRequest(0, PROMPT, TokenParams(seed=1, max_tokens=max_tokens)))
    return made


def planned(made: Scheduler) -> StepPlan:
    plan = made.plan()
    assert plan is not None
    return plan


def result(*tokens: int, drafts: tuple[int, ...] = ()) -> StepResult:
    return StepResult(tuple(map(RowOutput, tokens)), drafts=(drafts,) if drafts else ())


def test_each_step_verifies_what_the_one_before_drafted() -> None:
    made = scheduler()
    first = planned(made)
    assert first.rows == (Row(0, 0, PROMPT),), "a prompt asks for nothing"
    made.commit(first, result(10))
    second = planned(made)
    assert second.rows == (Row(0, 3, (10,), 1, 1, n_drafts=3),)
    made.commit(second, result(11, drafts=(12, 13, 14)))
    third = planned(made)
    assert third.rows == (Row(0, 4, (11, 12, 13, 14), 4, 2, n_drafts=3),)
    (event,) = made.commit(third, result(12, 13, 90, 91, drafts=(20, 21, -1)))
    assert event.tokens == (12, 13, 90)
    assert planned(made).rows == (Row(0, 7, (90, 20, 21), 3, 5, n_drafts=3),), "as far as drawn"


def test_a_plan_made_meanwhile_names_the_drafts() -> None:
    made = scheduler()
    plans = [planned(made)]
    plans.append(planned(made))
    assert plans[1].rows == (Row(0, 3, (-1,), 1, 1, n_drafts=3),)
    made.commit(plans[0], result(10))
    plans.append(planned(made))
    names = reference(0), reference(0, 1), reference(0, 2), reference(0, 3)
    assert plans[2].rows == (Row(0, 4, names, 4, 2, n_drafts=3),)
    made.commit(plans[1], result(11, drafts=(12, 13, 14)))
    assert made.plan() is None, "how far it gets is not known"
    (event,) = made.commit(plans[2], result(12, 13, 90, 91, drafts=(20, 21, 22)))
    assert event.tokens == (12, 13, 90)
    assert planned(made).rows == (Row(0, 7, (90, 20, 21, 22), 4, 5, n_drafts=3),)


def test_tables_hold_what_is_drafted() -> None:
    made = scheduler()
    made.commit(planned(made), result(10))
    made.commit(planned(made), result(11, drafts=(12, 13, 14)))
    (change,) = planned(made).tables
    assert (change.first, len(change.blocks)) == (1, 1), "entries up to 11 where blocks have 8"


@pytest.mark.parametrize(
    ("changes", "n_asked"),
    [
        ({"max_tokens": 4}, [0, 1]),
        ({"max_tokens": 3}, [0, 0]),
        ({"max_model_len": 7}, [0, 1]),
        ({"max_model_len": 6}, [0, 0]),
        ({"max_draft_tokens": 1}, [0, 1]),
        ({"max_draft_tokens": 40, "max_tokens": 40}, [0, MAX_DRAFTS]),
    ],
)
def test_no_more_is_asked_for_than_can_be_used(changes: dict[str, int], n_asked: list[int]) -> None:
    made = scheduler(**changes)
    found = []
    for token in (10, 11):
        plan = planned(made)
        (row,) = plan.rows
        found.append(row.n_drafts)
        made.commit(plan, result(token, drafts=tuple(range(12, 12 + row.n_drafts))))
    assert found == n_asked


def test_an_executor_that_ignores_what_it_is_asked_for_is_a_fault() -> None:
    made = scheduler()
    made.commit(planned(made), result(10))
    with pytest.raises(KvasirError, match="the executor has no draft program"):
        made.commit(planned(made), result(11))


def test_references_to_drafts_stand_for_ids() -> None:
    plan = StepPlan(0, (Row(0, 0, (1, 2), 2, n_drafts=2), Row(1, 0, (3,))))
    drawn = Drawn.by(plan, tuple(map(RowOutput, (2, 9, 4))), ((7, -1), ()))
    assert drawn.ids((reference(1), reference(1, 1), reference(1, 2), -3, 5)) == (9, 7, 0, 4, 5)
    assert drawn.knows(reference(1, 2))
    assert not drawn.knows(reference(0, 1)), "drafts follow the last row"
    assert not drawn.knows(reference(1, 3)) and not drawn.knows(reference(3))


def opened(n_blocks: int = 2) -> FakeExecutor:
    """After a row that drafted two tokens behind position 2."""
    sizes = changed(CONFIG, n_blocks=8).sizes
    executor = FakeExecutor(sizes, misses=0)
    row = placed(0, 0, PROMPT, (tuple(range(n_blocks)),), n_drafts=2)
    params = TokenParams(seed=1, max_tokens=9)
    executor.run(step_plan(0, (row,), (SlotOpen(0, params, PROMPT),)))
    return executor


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (Row(0, 3, (-1, reference(0, 3))), "references"),
        (Row(0, 3, (-1,), n_drafts=-1), "-1 drafts"),
        (Row(0, 3, (-1, reference(0, 1), 3), 2, n_drafts=1), "1 drafts"),
        (Row(0, 3, (-1,), n_drafts=61), "storage up to 65"),
        (Row(0, 3, (-1, 2), 2, parents=(-1, 0), targets=(2, -1), n_drafts=1), "1 drafts"),
        (Row(0, 3, (-1,), n_drafts=13), "entries|blocks|tokens in blocks"),
    ],
)
def test_plans_that_draft_wrongly_are_refused(row: Row, message: str) -> None:
    with pytest.raises(KvasirError, match=message):
        opened().run(StepPlan(1, (row,)))


def test_who_has_no_draft_program_says_so() -> None:
    executor = FakeExecutor(CONFIG.sizes)
    row = placed(0, 0, PROMPT, ((0,),), n_drafts=2)
    opening = SlotOpen(0, TokenParams(seed=1, max_tokens=9), PROMPT)
    with pytest.raises(KvasirError, match="no draft program"):
        executor.run(step_plan(0, (row,), (opening,)))


def test_nobody_reads_what_a_draft_left_behind() -> None:
    """Its entries lie where no token of the target is."""
    checker = PlanChecker(CONFIG.sizes)
    opening = partial(SlotOpen, params=TokenParams(seed=1, max_tokens=9))
    row = placed(0, 0, PROMPT, ((0,),), n_drafts=2)
    checker.check(step_plan(0, (row,), (opening(slot=0, prompt=PROMPT),)))
    checker.drew((RowOutput(9),), ((8, 7),))
    known = (*PROMPT, 9)
    skipping = placed(1, 4, (8,), ((0,),))
    with pytest.raises(KvasirError, match="entry 3 in block 0, which was never written"):
        checker.check(step_plan(1, (skipping,), (opening(slot=1, prompt=(*known, 8)),)))
