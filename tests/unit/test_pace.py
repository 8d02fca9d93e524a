"""Chunks of prompts while streams wait: sized from the cost model, on a virtual clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, StepPlan
from kvasir.core.request import EngineRequest
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import CostModel, Costs, Load, chunk_load
from kvasir.timing.pace import Pace, make_pace
from tests.sizes import config_of

COSTS = Costs(step=2e-3, row=1e-9, token=1e-3, pair=1e-6, entry=1e-12)
N_STREAMS, N_PROMPT = 16, 2000


def config(itl_target: float | None) -> SchedulerConfig:
    n_blocks = (N_PROMPT + 64 + N_STREAMS * 2048) // 16
    return config_of(N_PROMPT + 64, 32, 512, n_blocks, 16, vocab_size=64, itl_target=itl_target)


def request(i: int, n_prompt: int, max_tokens: int = 2000) -> EngineRequest:
    return EngineRequest(i, (3,) * n_prompt, TokenParams(seed=i, max_tokens=max_tokens))


def test_room_is_what_the_target_leaves() -> None:
    pace = Pace(CostModel(COSTS), 0.05)
    decodes = Load(rows=8, tokens=8)
    assert pace.room(decodes, decodes, 0, 512) == 39
    assert pace.room(decodes, decodes, 0, 20) == 20
    assert pace.room(decodes, decodes, 8000, 512) == 4
    with_chunk = decodes.plus(chunk_load(30, 0))
    assert pace.room(with_chunk, decodes, 0, 512) == 9


def test_slow_decodes_leave_prompts_sixteen_tokens_or_a_share() -> None:
    pace = Pace(CostModel(COSTS), 1e-3)
    few, many = Load(rows=1, tokens=1), Load(rows=48, tokens=48)
    assert pace.room(few, few, 0, 512) == 16
    assert pace.room(many, many, 0, 512) == 24
    assert pace.room(many.plus(chunk_load(24, 0)), many, 0, 512) == 0


def test_a_lone_chunk_has_at_least_one_token() -> None:
    pace = Pace(CostModel(COSTS._replace(pair=1e-3)), 1e-3)
    decodes = Load(rows=1, tokens=1)
    assert pace.room(decodes, decodes, 10_000, 512) == 1
    assert pace.room(decodes.plus(chunk_load(1, 0)), decodes, 10_000, 512) == 0


def measured(rows: Sequence[Row]) -> float:
    """A machine whose attention is worth a token per 250 tokens of context."""
    loads = [chunk_load(len(row.tokens), row.start) for row in rows]
    n_tokens, n_pairs = sum(x.tokens for x in loads), sum(x.pairs for x in loads)
    return max(5e-3, 4e-4 * n_tokens) + 1e-3 + 1.6e-6 * n_pairs


def drive(itl_target: float | None) -> tuple[list[float], list[int]]:
    """While a long prompt is computed: what each step takes as a multiple of what its streams alone
    would, and the tokens of each chunk."""
    sizes = config(itl_target)
    executor = FakeExecutor(sizes.sizes, seconds=lambda plan: measured(plan.rows))
    scheduler = Scheduler(sizes)

    def step() -> StepPlan:
        plan = scheduler.plan()
        assert plan is not None
        scheduler.commit(plan, executor.run(plan))
        return plan

    for i in range(N_STREAMS):
        scheduler.add(request(i, 64))
    for _ in range(40):
        step()
    scheduler.add(request(99, N_PROMPT))
    slowdowns: list[float] = []
    chunks: list[int] = []
    while sum(chunks) < N_PROMPT:
        rows = step().rows
        slowdowns.append(measured(rows) / measured(rows[:N_STREAMS]))
        chunks.append(sum(len(row.tokens) for row in rows[N_STREAMS:]))
    return slowdowns, chunks


def test_streams_keep_their_pace_while_a_long_prompt_arrives() -> None:
    slowdowns, chunks = drive(0.015)
    assert sorted(slowdowns)[int(0.99 * len(slowdowns))] <= 2
    assert min(chunks) >= 1
    assert chunks[0] > 2 * chunks[-2]


def test_the_automatic_target_follows_the_decodes_and_who_waits() -> None:
    costs = CostModel(COSTS._replace(pair=1e-12))
    auto, slow = make_pace(costs, 0.0), make_pace(costs, 0.01)
    assert make_pace(costs, None) is None
    assert auto is not None
    assert slow is not None
    decodes = Load(rows=98, tokens=98)
    assert auto.room(decodes, decodes, 0, 512) == 70
    assert auto.room(decodes, decodes, 0, 512, n_prompts=3) == 210
    assert slow.room(decodes, decodes, 0, 512, n_prompts=3) == 50
    slowdowns, _ = drive(0.0)
    assert sorted(slowdowns)[int(0.99 * len(slowdowns))] <= 2


def test_without_a_target_chunks_fill_the_budget() -> None:
    slowdowns, chunks = drive(None)
    assert chunks == [496, 496, 496, 496, 16]
    assert max(slowdowns) > 40


def test_with_nobody_decoding_the_whole_budget_is_used() -> None:
    scheduler = Scheduler(config(1e-6))
    scheduler.add(request(1, 1000))
    plan = scheduler.plan()
    assert plan is not None
    assert plan.n_tokens == 512


def test_several_prompts_share_what_the_target_leaves() -> None:
    scheduler = Scheduler(config(0.05), costs=CostModel(COSTS))
    executor = FakeExecutor(scheduler.config.sizes)
    scheduler.add(request(0, 4))
    plan = scheduler.plan()
    assert plan is not None
    scheduler.commit(plan, executor.run(plan))
    for i in range(1, 6):
        scheduler.add(request(i, 20))
    plan = scheduler.plan()
    assert plan is not None
    assert [len(row.tokens) for row in plan.rows] == [1, 20, 20, 6]


@pytest.mark.parametrize("target", [None, 0.0, 0.01])
def test_every_request_ends(target: float | None) -> None:
    scheduler = Scheduler(config(target))
    executor = FakeExecutor(scheduler.config.sizes, seconds=lambda plan: measured(plan.rows))
    for i in range(40):
        scheduler.add(request(i, 1 + 50 * i, max_tokens=5))
    while (plan := scheduler.plan()) is not None:
        scheduler.commit(plan, executor.run(plan))
        scheduler.check()
    assert scheduler.stats().output_tokens == 40 * 5
