"""What the scheduler makes of the prefix cache, read off its plans."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.plan import Copy, RowOutput, StepPlan, StepResult
from kvasir.core.request import Context, EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.speculate.base import Draft, Proposer
from tests.planned import Checkers, tables_after
from tests.sizes import changed, config_of

CHECKERS = Checkers()
PARAMS = TokenParams(seed=0, max_tokens=2)
CONFIG = config_of(
    max_model_len=256,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    n_blocks=24,
    block_size=16,
    enable_prefix_caching=True,
)


def ask(i: int, prompt: range | list[int], *, salt: str = "", **changes: object) -> EngineRequest:
    return EngineRequest(i, tuple(prompt), replace(PARAMS, **changes), context=Context(salt))


def step(made: Scheduler, token: int = 7) -> tuple[StepPlan, tuple[TokenEvent, ...]]:
    """Plan, draw ``token`` everywhere, commit."""
    plan = made.plan()
    assert plan is not None
    outputs = (RowOutput(token),) * plan.n_logits
    CHECKERS.ran(made, plan, outputs)
    events = made.commit(plan, StepResult(outputs))
    made.check()
    return plan, events


def finish(made: Scheduler, *requests: EngineRequest) -> list[StepPlan]:
    for one in requests:
        made.add(one)
    plans = []
    while made.has_work:
        plans.append(step(made)[0])
    return plans


def starts(plans: list[StepPlan]) -> list[tuple[int, int]]:
    return [(row.start, len(row.tokens)) for plan in plans for row in plan.rows]


def test_a_hit_begins_after_the_cached_blocks() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(40)))
    made.add(ask(2, [*range(32), 200, 201]))
    plan, events = step(made)
    row = plan.rows[0]
    assert (row.start, row.tokens, len(tables_after(CONFIG, [plan])[0][0])) == (32, (200, 201), 3)
    assert plan.copies == ()
    assert events[0].n_cached == 32
    assert step(made)[1][0].n_cached == 0
    stats = made.stats()
    assert (stats.prefix_queries, stats.prefix_hits) == (39 + 33, 32)


def test_a_part_of_a_block_is_copied() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(48)))
    made.add(ask(2, [*range(20), 200, 201]))
    plan, _ = step(made)
    row = plan.rows[0]
    assert (row.start, row.tokens) == (20, (200, 201))
    ((blocks,),) = tables_after(CONFIG, [plan])
    assert plan.copies == (Copy((1,), (blocks[1],), 4),)
    assert blocks[1] != 1


def test_a_hit_stops_one_token_before_the_end() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(48)))
    plan = finish(made, ask(2, range(48)))[0]
    assert starts([plan]) == [(47, 1)]
    assert [copy.n_entries for copy in plan.copies] == [15]
    assert made.stats().prefix_hits == 47


def test_outputs_are_cached_too_but_for_the_last() -> None:
    """The tenth turn of a conversation computes what is new of it."""
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(30), max_tokens=20))
    plans = finish(made, ask(2, [*range(30), *[7] * 20, 99]))
    assert starts(plans)[0] == (48, 3)


def test_without_the_option_nothing_is_kept() -> None:
    made = Scheduler(replace(CONFIG, enable_prefix_caching=False))
    finish(made, ask(1, range(40)))
    assert starts(finish(made, ask(2, range(40))))[0] == (0, 32)
    stats = made.stats()
    assert (stats.blocks_cached, stats.prefix_queries) == (0, 0)


def test_salts_never_share() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(40), salt="a"))
    for salt in ("", "b", "a\0", "A"):
        assert starts(finish(made, ask(2, range(40), salt=salt)))[0] == (0, 32)
    assert starts(finish(made, ask(3, range(40), salt="a")))[0] == (32, 8)


@pytest.mark.parametrize(("salt", "n_rows"), [("a", 1), ("b", 2)])
def test_salts_do_not_wait_for_each_other(salt: str, n_rows: int) -> None:
    made = Scheduler(changed(CONFIG, max_num_batched_tokens=64))
    made.add(ask(1, range(20), salt="a"))
    made.add(ask(2, range(20), salt=salt))
    assert len(step(made)[0].rows) == n_rows


def test_prompt_logprobs_compute_every_token() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(40)))
    plans = finish(made, ask(2, range(40), n_prompt_logprobs=0))
    assert starts(plans)[:2] == [(0, 32), (32, 8)]
    assert made.stats().prefix_hits == 0


def test_scored_tokens_are_not_computed_again() -> None:
    """Choices of a program are scored behind what is cached: logprobs of the rest alone."""
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(48)))
    scored = ask(2, [*range(40), 200, 201], n_prompt_logprobs=0, max_tokens=0)
    made.add(replace(scored, n_scored=39))
    plan, events = step(made)
    (row,) = plan.rows
    assert (row.start, row.tokens, row.targets) == (39, (39, 200), (200, 201))
    (event,) = events
    assert (len(event.prompt_logprobs), event.finish, event.n_cached) == (2, "length", 39)
    assert not made.has_work


def test_a_request_waits_for_the_one_that_computes_its_block() -> None:
    made = Scheduler(CONFIG)
    made.add(ask(1, range(100)))
    made.add(ask(2, [*range(64), 200]))
    made.add(ask(3, range(150, 160)))
    plans = [step(made)[0] for _ in range(5)]
    slots = [[row.slot for row in plan.rows] for plan in plans]
    assert slots[:2] == [[0], [0]]
    late = next(row for plan in plans for row in plan.rows if 200 in row.tokens)
    assert (late.start, late.tokens) == (64, (200,))


def test_others_pass_a_request_that_waits() -> None:
    made = Scheduler(changed(CONFIG, max_num_batched_tokens=48))
    made.add(ask(1, range(40)))
    made.add(ask(2, range(40)))
    made.add(ask(3, range(150, 158)))
    plan, _ = step(made)
    assert [row.tokens[0] for row in plan.rows] == [0, 150]
    assert made.stats().n_waiting == 1
    plan, _ = step(made)
    assert (32, 8) in starts([plan])
    assert made.stats().n_waiting == 0


@pytest.mark.parametrize(("most", "starts_in"), [(0, 0), (1, 1), (256, 2)])
def test_waiting_is_bounded(monkeypatch: pytest.MonkeyPatch, most: int, starts_in: int) -> None:
    monkeypatch.setattr("kvasir.sched.queues.MAX_WAITS", most)
    made = Scheduler(changed(CONFIG, max_num_batched_tokens=64))
    made.add(ask(1, range(20), max_tokens=9))
    made.add(ask(2, range(20), max_tokens=9))
    first, second = made.plan(), made.plan()
    assert first is not None and second is not None
    made.commit(first, StepResult((RowOutput(7),) * first.n_logits))
    third = made.plan()
    assert third is not None
    opened = [len(plan.opens) for plan in (first, second, third)]
    expected = [1, 0, 0]
    expected[starts_in] += 1
    assert opened == expected
    assert third.rows[-1].start == (21, 20, 16)[starts_in]


def test_nobody_waits_for_a_cancelled_request() -> None:
    made = Scheduler(changed(CONFIG, max_num_batched_tokens=8))
    made.add(ask(1, range(64)))
    made.add(ask(2, range(64)))
    step(made)
    assert made.stats().n_running == 1
    assert made.cancel(1)
    assert starts([step(made)[0]]) == [(0, 8)]


def test_what_runs_is_not_cached_before_it_is_committed() -> None:
    made = Scheduler(CONFIG)
    made.add(ask(1, range(100)))
    first, second = made.plan(), made.plan()
    assert first is not None and second is not None
    made.commit(first, StepResult(()))
    made.cancel(1)
    assert made.stats().blocks_cached == 2
    made.commit(second, StepResult(()))
    assert made.stats().blocks_cached == 2
    made.check()


def test_a_rejected_draft_is_not_cached() -> None:
    """The last token ends a block, and where its entries belong a rejected draft has written."""
    made = Scheduler(replace(CONFIG, max_draft_tokens=4), _Sibling())
    made.add(ask(1, range(30), max_tokens=20, stop_ids=(9,)))
    step(made)
    plan = made.plan()
    assert plan is not None and plan.rows[0].start == 30
    made.commit(plan, StepResult(tuple(map(RowOutput, (9, 1, 1, 1)))))
    made.check()
    assert not made.has_work
    assert made.stats().blocks_cached == 1


def test_a_preempted_request_finds_its_blocks_again() -> None:
    made = Scheduler(changed(CONFIG, n_blocks=7, max_num_batched_tokens=64))
    made.add(ask(1, range(30), max_tokens=40))
    made.add(ask(2, range(100, 120), max_tokens=40))
    plans = []
    while made.has_work:
        plans.append(step(made)[0])
    again = [opening for plan in plans for opening in plan.opens if opening.output]
    assert made.stats().n_preemptions == len(again) > 0
    assert made.stats().prefix_hits >= 16 * len(again)


def test_reset_forgets() -> None:
    made = Scheduler(CONFIG)
    finish(made, ask(1, range(40)))
    made.add(ask(2, range(64, 128)))
    step(made)
    made.reset_prefix_cache()
    made.check()
    assert made.stats().blocks_cached == 0
    finish(made)
    assert made.stats().blocks_cached == 0
    assert starts(finish(made, ask(3, range(40))))[0] == (0, 32)


def test_what_waits_for_a_move_is_not_cached_yet() -> None:
    """A request that ends with entries out of place leaves only the blocks before them."""
    made = Scheduler(replace(CONFIG, max_draft_tokens=4), _Sibling())
    made.add(ask(1, range(30), max_tokens=20, stop_ids=(9,)))
    step(made)
    plan = made.plan()
    assert plan is not None
    assert plan.rows[0].parents == (-1, 0, 0, 2)
    made.commit(plan, StepResult(tuple(map(RowOutput, (8, 1, 9, 1)))))
    made.check()
    assert not made.has_work
    assert made.stats().blocks_cached == 1


class _Sibling(Proposer):
    """A wrong token, then right ones: the accepted path has to move."""

    def propose(self, requests: Sequence[object], k: int) -> list[Draft]:
        return [Draft((3, 8, 5), (-1, -1, 1))] * len(requests)


def test_not_finite_is_not_kept() -> None:
    spec = EngineSizes(256, 256, 4, 32, 24, 16)
    for overlap in (False, True):
        executor = FakeExecutor(spec, nonfinite={13: 0})
        made = Engine(executor, Scheduler(CONFIG), overlap=overlap)
        made.submit([ask(1, range(33), max_tokens=9)])
        while made.has_work:
            made.step()
        n_cached = made.stats().blocks_cached
        made.submit([ask(2, range(100), seed=13)])
        news = []
        while made.has_work:
            news += made.step().events
        assert news[-1].error_code == "model_numerics"
        assert n_cached == made.stats().blocks_cached == 2
        made.close()


def test_a_part_of_the_last_block_that_it_needs_itself_is_not_copied() -> None:
    """Copied from, the block would be held, and the request could never start."""
    made = Scheduler(changed(CONFIG, n_blocks=3, max_model_len=64))
    finish(made, ask(1, range(47)))
    made.add(ask(2, [*range(40), *range(200, 207)], max_tokens=1))
    plan, _ = step(made)
    assert (plan.rows[0].start, plan.copies) == (32, ())
