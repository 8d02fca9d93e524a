"""What a step costs does not depend on how many wait, and waits are foretold from sums.

Counted in bytecodes: however crowded the machine is, they are the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from itertools import groupby
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bench.experiments.turnover import Turnover, Variant, variants
from kvasir.config.resolved import SharingConfig
from kvasir.core.params import TokenParams
from kvasir.core.plan import RowOutput, StepResult
from kvasir.core.request import EngineRequest, Standing
from kvasir.kv.holders import Holders
from kvasir.kv.keys import KeyChain
from kvasir.kv.pool import BlockPool
from kvasir.kv.table import BlockTable
from kvasir.sched.order import MAX_GONE, Line
from kvasir.sched.request import Request, new_request
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.backlog import Backlog
from kvasir.timing.cost import CostModel, Costs
from kvasir.timing.deadlines import MIN_KEPT, Deadlines
from kvasir.timing.outlook import start_after, start_behind
from tests.sizes import config_of

FEW, MANY = 300, 3000
COSTS = Costs(step=0.01, row=1e-9, token=1e-3, pair=1e-12, entry=1e-12)


def count(act: Callable[[], object]) -> int:
    """Bytecodes that ``act`` takes, those of loops in comprehensions and generators included."""
    n = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal n
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        n += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return n


def turn(load: Turnover, n_steps: int) -> None:
    for _ in range(n_steps):
        load.arrive()
        load.step()


@pytest.mark.parametrize("name", [variant.name for variant in variants(2)[:-1]])
def test_a_step_costs_the_same_however_many_wait(name: str) -> None:
    costs = []
    for n_waiting in (FEW, MANY):
        (variant,) = (each for each in variants(n_waiting) if each.name == name)
        load = Turnover(variant, 16, n_waiting)
        turn(load, 40)
        costs.append(count(lambda load=load: turn(load, 32)))  # type: ignore[misc]
    few, many = costs
    assert few > 16 * 32 * 10
    assert many < 1.1 * few


@pytest.mark.parametrize("act", ["add", "cancel", "expire", "refuse"])
def test_an_arrival_or_an_end_costs_the_same_however_many_wait(act: str) -> None:
    assert _cost(act, MANY) < 1.25 * _cost(act, FEW)


def _cost(act: str, n_waiting: int) -> int:
    now = 0.0
    config = config_of(1024, 4, 64, 256, 16)
    made = Scheduler(config, costs=CostModel(COSTS), clock=lambda: now)
    for i in range(n_waiting + 4):
        is_late = act == "expire" and i > n_waiting
        made.add(_asked(i, **({"ttft_by": 500.0} if is_late else {"answer_by": 1e9})))
        if i == 3:
            step(made)
    acts: dict[str, Callable[[], object]] = {
        "add": lambda: made.add(_asked(-1, answer_by=1e9)),
        "cancel": lambda: made.cancel(n_waiting // 2),
        "expire": made.plan,
        "refuse": lambda: made.add(_asked(-1, answer_by=1.0)),
    }
    now = 600.0 if act == "expire" else 0.1
    cost = count(acts[act])
    stats = made.stats()
    assert (stats.n_expired > 0, stats.n_unreachable > 0) == (act == "expire", act == "refuse")
    return cost


def _asked(i: int, **due: Any) -> EngineRequest:
    return EngineRequest(i, (5,) * 10, TokenParams(seed=1, max_tokens=30), standing=Standing(**due))


def step(made: Scheduler) -> float:
    """Runs one; the seconds that it took."""
    plan = made.plan()
    assert plan is not None
    seconds = COSTS.step + COSTS.token * plan.n_tokens
    made.commit(plan, StepResult((RowOutput(7),) * plan.n_logits, seconds))
    return seconds


def grouped(lefts: list[int]) -> list[tuple[int, int]]:
    return [(left, len(list(same))) for left, same in groupby(sorted(lefts))]


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=9), st.integers(0, 40), st.integers(0, 100)
)
def test_starts_of_equally_long_answers_are_exact(lefts: list[int], length: int, n: int) -> None:
    ends = grouped(lefts)
    assert start_after(ends, length, n) == start_behind(ends, [length] * n)


def test_starts_come_in_the_order_of_the_queue() -> None:
    assert start_behind([(3, 2), (9, 1)], []) == 3
    assert start_behind([(3, 2), (9, 1)], [1, 2, 50]) == 5
    assert start_behind([(0, 1)], [4, 6]) == 10


@given(st.lists(st.integers(1, 900), max_size=40), st.integers(1, 1000))
def test_a_backlog_adds_up_what_waits(lengths: list[int], usual: int) -> None:
    backlog = Backlog()
    fixed = [_waiting(i, n, ()) for i, n in enumerate(lengths)]
    may_stop = [_waiting(i, n, (3,)) for i, n in enumerate(lengths)]
    for request in fixed:
        backlog.add(request)
    assert backlog.outputs(usual)[0] == pytest.approx(sum(lengths))
    for request in fixed:
        backlog.remove(request)
    for request in may_stop:
        backlog.add(request)
    truth = sum(min(n, usual) for n in lengths)
    assert truth - 1e-6 <= backlog.outputs(usual)[0] <= 1.25 * truth + 1e-6
    for request in may_stop:
        request.n_drawn = 1  # of a draft that was in flight when it was preempted
        backlog.remove(request)
    assert (len(backlog), backlog.outputs(usual), backlog.prompts()) == (0, (0, 0), (0, 0, 0, 0))


def test_min_tokens_are_waited_for() -> None:
    backlog = Backlog()
    request = _waiting(1, 1000, (3,))
    request.params = replace(request.params, min_tokens=700)
    backlog.add(request)
    assert backlog.outputs(100) == (700, 700**2)


def _waiting(i: int, n_outputs: int, stop_ids: tuple[int, ...]) -> Request:
    params = TokenParams(seed=i, max_tokens=n_outputs, stop_ids=stop_ids)
    return new_request(EngineRequest(i, (5,) * 9, params), i, n_outputs, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("n_slots", "lengths", "n_prompt"),
    [
        (32, [250], 10),  # all end at the same time
        (8, [16], 30),
        (8, [10, 200], 10),
        (16, [5, 40, 90, 300], 20),
        (1, [30], 50),
        (4, [64], 200),
    ],
)
def test_waits_are_foretold_within_a_quarter(
    n_slots: int, lengths: list[int], n_prompt: int
) -> None:
    """What the first token of one behind all waits for, beyond its own prompt."""
    for n_waiting in (1, n_slots // 2 + 1, 2 * n_slots, 10 * n_slots):
        made = Scheduler(config_of(2048, n_slots, 256, 4096, 16), costs=CostModel(COSTS))
        for i in range(n_slots + n_waiting):
            params = TokenParams(seed=i, max_tokens=lengths[i % len(lengths)])
            made.add(EngineRequest(i, (5,) * n_prompt, params))
            if i == n_slots - 1:
                while made.stats().n_running < n_slots:
                    step(made)
        last = EngineRequest(10**6, (5,) * n_prompt, TokenParams(seed=0, max_tokens=1))
        foretold, now = made.stats().last_wait, 0.0
        made.add(last)
        while last.id in made._requests:
            now += step(made)
        truth = now - COSTS.step - n_prompt * COSTS.token
        assert foretold == pytest.approx(truth, rel=0.25, abs=2 * COSTS.step), n_waiting


def test_places_that_were_just_left_are_free() -> None:
    """Not taken for places that blocks lack for."""
    made = Scheduler(config_of(2048, 8, 256, 4096, 16), costs=CostModel(COSTS))
    for i in range(100):
        n_outputs = 500 if i == 7 else 20
        made.add(EngineRequest(i, (5,) * 10, TokenParams(seed=i, max_tokens=n_outputs)))
    while (stats := made.stats()).n_running != 1:
        step(made)
    assert (stats.n_running, stats.first_wait) == (1, 0.0)
    # 92 of 20 tokens in eight places, one of which is taken for long
    seconds = 20 * (COSTS.step + 8 * COSTS.token) * 92 / 8 + 92 * 9 * COSTS.token
    assert stats.last_wait == pytest.approx(seconds, rel=0.25)


@pytest.mark.parametrize(
    ("n_blocks", "wait"), [(2048, 0.0), (64, 980 * (COSTS.step + COSTS.token))]
)
def test_places_that_nobody_asked_for_are_free(n_blocks: int, wait: float) -> None:
    """While somebody runs and nobody waits: unless there are no blocks for one more."""
    config = config_of(1024, 8, 256, n_blocks, 16, sharing=SharingConfig(kv_policy="contiguous"))
    made = Scheduler(config, costs=CostModel(COSTS))
    made.add(EngineRequest(1, (5,) * 10, TokenParams(seed=1, max_tokens=1000)))
    for _ in range(20):
        step(made)
    made.add(_asked(3))
    assert made.stats().first_wait == pytest.approx(wait, rel=0.01)


def test_variants_differ_in_what_they_are_named_for() -> None:
    assert len({each.name for each in variants(5)}) == len(variants(5))
    load = Turnover(Variant("deadlines", has_deadlines=True), 4, 8)
    turn(load, 20)
    assert load.scheduler.stats().n_unreachable == load.scheduler.stats().n_expired == 0
    assert load.scheduler.stats().n_waiting >= 8 - 4


def test_what_is_kept_goes_in_the_order_of_its_time() -> None:
    now = 0.0
    holders = Holders(lambda: now)
    pool = BlockPool(64)
    for i, seconds in enumerate((9.0, 3.0, 6.0, 1.0)):
        request = _waiting(i, 4, ())
        request.table = BlockTable((pool,), 16)
        request.asked = replace(request.asked, hold_seconds=seconds)
        request.vouched.chain = KeyChain(b"", request.tokens, 16)
        holders.add(request)
        request.table.grow(40)
        holders.keep(request, 9)
        assert request.vouched.chain is None, "it would hold the keys of all blocks"
    assert pool.n_used == holders.n_kept == 4
    holders.let_go(1)
    now = 2.0
    holders.expire()
    assert [holder.id for holder in holders] == [0, 2]
    assert holders.reclaim()
    assert [holder.id for holder in holders] == [0]
    now = 9.0
    holders.expire()
    assert not holders.n_kept and not holders.reclaim() and not pool.n_used


def test_ended_requests_leave_the_deadlines_a_few_at_a_time() -> None:
    deadlines = Deadlines()
    requests = [_waiting(i, 4, ()) for i in range(1000)]
    for i, request in enumerate(requests):
        standing = Standing(ttft_by=10.0 + i, answer_by=2000.0)
        request.asked = replace(request.asked, standing=standing)
        deadlines.add(request)
        if i % 2:
            request.finish = "stop"
    assert len(deadlines) <= 2 * 500 + MIN_KEPT
    requests[0].tokens.append(7)  # in time: the answer is still due
    late = deadlines.expired(500.0)
    assert {request.arrival: what for request, what in late} == {
        i: "ttft_ms" for i in range(2, 491, 2)
    }
    rest = dict(deadlines.expired(5000.0))
    assert rest[requests[0]] == "deadline_ms"
    assert len(rest) == 500 - 245 and deadlines.is_idle


def test_those_who_have_left_a_line_are_dropped() -> None:
    line, requests = Line(), [_waiting(i, 4, ()) for i in range(1000)]
    for i in range(1000):
        line.push(requests[i])
    n_waiting = sys.getrefcount(requests[999])
    for i in range(400):
        line.remove(requests[i])
    n_kept = sum(sys.getrefcount(requests[i]) == n_waiting for i in range(400))
    assert (n_kept < MAX_GONE, len(line), line.first(1)) == (True, 600, [requests[400]])


def test_the_last_cached_blocks_leave_as_soon_as_the_first() -> None:
    n_blocks = 60_000
    pool = BlockPool(n_blocks, known=range(1 << 20))
    pool.free(pool.allocate(n_blocks))
    seconds = []
    for _ in range(4):
        began = time.thread_time()
        pool.allocate(n_blocks // 4)
        seconds.append(time.thread_time() - began)
    assert pool.n_cached == 0
    assert seconds[3] < 3 * seconds[0] + 1e-3
