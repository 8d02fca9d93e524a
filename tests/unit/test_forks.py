"""Forks and held blocks, read off the scheduler's plans."""

from __future__ import annotations

import pytest
from msgspec.structs import replace as with_fields

from kvasir.core.params import TokenParams
from kvasir.core.plan import Copy, RowOutput, StepPlan, StepResult
from kvasir.core.request import Context, EngineRequest
from kvasir.kv import holders
from kvasir.kv.fork import common_prefix
from kvasir.sched.scheduler import Scheduler
from tests.planned import Checkers, tables_after
from tests.sizes import changed, config_of

CHECKERS = Checkers()
PARAMS = TokenParams(seed=0, max_tokens=2)
CONFIG = config_of(
    max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, n_blocks=24, block_size=16
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def ask(i: int, prompt: range | list[int], parent: int = -1, **changes: float) -> EngineRequest:
    return EngineRequest(i, tuple(prompt), PARAMS, parent=parent, **changes)  # type: ignore[arg-type]


def step(made: Scheduler) -> StepPlan:
    """Plan, draw 7 everywhere, commit."""
    plan = made.plan()
    assert plan is not None
    outputs = (RowOutput(7),) * plan.n_logits
    CHECKERS.ran(made, plan, outputs)
    made.commit(plan, StepResult(outputs))
    made.check()
    return plan


def finish(made: Scheduler, *requests: EngineRequest) -> None:
    for one in requests:
        made.add(one)
    while made.has_work:
        step(made)


def test_choices_of_a_prompt_share_its_blocks_without_the_prefix_cache() -> None:
    made = Scheduler(CONFIG)
    for one in (ask(1, range(40)), ask(2, range(40), 1), ask(3, range(40), 1)):
        made.add(one)
    plans = [step(made)]
    assert [len(row.tokens) for row in plans[0].rows] == [40]
    plans.append(step(made))
    plan = plans[-1]
    first, second, third = (tables[0] for tables in tables_after(CONFIG, plans))
    assert [(row.start, len(row.tokens)) for row in plan.rows] == [(40, 1), (39, 1), (39, 1)]
    assert first[:2] == second[:2] == third[:2]
    assert len({first[2], second[2], third[2]}) == 3
    source = (first[2],)
    assert plan.copies == (
        Copy(source, (second[2],), 7),
        Copy(source, (third[2],), 7),
    )


def test_a_held_request_is_forked_after_its_end_until_its_time_is_up() -> None:
    clock = Clock()
    made = Scheduler(CONFIG, clock=clock)
    finish(made, ask(1, range(40), hold_seconds=5.0))
    assert made.stats().blocks_free == 21
    made.add(ask(2, [*range(40), 7, 9], 1))
    plan = step(made)
    assert (plan.rows[0].start, plan.rows[0].tokens) == (41, (9,))
    finish(made)
    clock.now = 6.0
    made.add(ask(3, [*range(40), 7, 9], 1))
    assert step(made).rows[0].start == 0
    finish(made)
    assert made.stats().blocks_free == 24


def test_a_released_request_gives_its_blocks_back() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(40), hold_seconds=5.0))
    made.release(1)
    made.release(1)
    assert made.stats().blocks_free == 24


def test_held_blocks_yield_to_what_runs() -> None:
    made = Scheduler(changed(CONFIG, n_blocks=4))
    finish(made, ask(1, range(40), hold_seconds=5.0))
    finish(made, ask(2, range(100, 160)))
    assert made.stats().blocks_free == 4
    made.add(ask(3, range(40), 1))
    assert step(made).rows[0].start == 0


def test_nothing_is_shared_across_salts() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(40), hold_seconds=5.0))
    made.add(with_fields(ask(2, range(40), 1), context=Context("other")))
    assert step(made).rows[0].start == 0


def test_a_fork_begins_where_the_tokens_differ() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(40), hold_seconds=5.0))
    made.add(ask(2, [*range(20), *range(90, 110)], 1))
    plan = step(made)
    assert plan.rows[0].start == 20
    assert [copy.n_entries for copy in plan.copies] == [4]


def test_common_prefix() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4], 9) == 2
    assert common_prefix([1, 2, 3], [1, 2, 3, 4], 9) == 3
    assert common_prefix([1, 2, 3], [1, 2, 3, 4], 1) == 1
    assert common_prefix([], [1], 3) == 0


def test_of_many_held_requests_the_one_whose_time_is_up_first_goes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(holders, "MAX_KEPT", 2)
    made = Scheduler(CONFIG, clock=Clock())
    for i, seconds in enumerate((5.0, 3.0, 4.0)):
        finish(made, ask(i, range(i, i + 32), hold_seconds=seconds))
    for i, start in enumerate((33, 0, 33)):
        prompt = [*range(i, i + 32), 7, 9]
        made.add(ask(10 + i, prompt, i))
        plan = step(made)
        assert plan.rows[0].start == start, i
        finish(made)
