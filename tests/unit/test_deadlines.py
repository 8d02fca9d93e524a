"""Deadlines, and the outlook that they are judged by, on a virtual clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from msgspec.structs import replace

from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan
from kvasir.core.request import EngineRequest, PriorityClass, Standing
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.request import Request, new_request
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.cost import CostModel, Costs
from kvasir.timing.deadlines import MIN_KEPT, Deadlines
from tests.sizes import config_of

COSTS = Costs(step=0.01, row=1e-9, token=1e-3, pair=1e-12, entry=1e-12)
"""A step takes 10 ms and a millisecond for each token."""


@dataclass
class World:
    """A scheduler on the fake executor."""

    n_slots: int = 2
    n_blocks: int = 400
    now: float = 100.0
    told: dict[int, list[TokenEvent]] = field(default_factory=dict)
    first: dict[int, float] = field(default_factory=dict)
    """When the first news of each request came."""

    def __post_init__(self) -> None:
        config = config_of(2048, self.n_slots, 64, self.n_blocks, 16, vocab_size=64)
        self.scheduler = Scheduler(config, costs=CostModel(COSTS), clock=lambda: self.now)
        self.executor = FakeExecutor(config.sizes, seconds=self._seconds)

    def _seconds(self, plan: StepPlan) -> float:
        return COSTS.step + COSTS.token * plan.n_tokens

    def add(
        self,
        i: int,
        n_prompt: int,
        n_outputs: int,
        priority_class: PriorityClass = "standard",
        **limits: float,
    ) -> None:
        """``limits`` are seconds from now."""
        due = {name: self.now + seconds for name, seconds in limits.items()}
        params = TokenParams(seed=i, max_tokens=n_outputs)
        standing = Standing(priority_class, **due)
        self.scheduler.add(EngineRequest(i, (5,) * n_prompt, params, standing=standing))

    def step(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is None:
            self._hear(self.scheduler.take_events())
            return None
        result = self.executor.run(plan)
        self.now += result.seconds
        self._hear(self.scheduler.commit(plan, result))
        self.scheduler.check()
        return plan

    def run(self) -> None:
        while self.scheduler.has_work:
            self.step()

    def _hear(self, events: tuple[TokenEvent, ...]) -> None:
        for event in events:
            self.told.setdefault(event.id, []).append(event)
            self.first.setdefault(event.id, self.now)

    def codes(self) -> dict[int, str | None]:
        return {i: events[-1].error_code for i, events in self.told.items()}


def test_a_deadline_that_can_be_met_changes_nothing() -> None:
    world, free = World(), World()
    world.add(1, 20, 10, ttft_by=1.0, answer_by=1.0)
    free.add(1, 20, 10)
    world.run()
    free.run()
    assert world.told == free.told
    assert world.told[1][-1].finish == "length"
    assert world.now < 101.0


def test_an_impossible_deadline_is_refused_before_anything_is_computed() -> None:
    world = World()
    world.add(1, 40, 100, answer_by=0.5)
    assert world.scheduler.plan() is None
    (event,) = world.scheduler.take_events()
    assert (event.finish, event.error_code) == ("error", "deadline_unreachable")
    assert event.error == (
        "deadline_ms leaves 500 ms, but the request is expected to wait 0 ms and to take 1139 ms: "
        "allow more time, ask for less"
    )
    assert event.retry_after == 0.0
    assert not world.scheduler.has_work
    assert world.scheduler.stats().n_unreachable == 1


def test_a_full_house_refuses_what_could_be_met_later() -> None:
    world = World()
    world.add(1, 10, 100)
    world.add(2, 10, 100)
    world.step()
    world.add(3, 10, 10, ttft_by=0.5)
    world.add(4, 10, 10, ttft_by=3.0)
    world.run()
    assert world.codes() == {1: None, 2: None, 3: "deadline_unreachable", 4: None}
    refusal = world.told[3][0]
    assert refusal.error is not None
    assert "expected to wait 1188 ms" in refusal.error
    assert refusal.error.endswith("or try again later")
    assert refusal.retry_after == pytest.approx(1.188 + 0.02 - 0.5, abs=0.01)


def test_waiting_requests_of_a_lower_class_are_not_in_the_way() -> None:
    codes = []
    classes: tuple[PriorityClass, ...] = ("batch", "realtime")
    for priority_class in classes:
        world = World()
        for i in range(8):
            world.add(i, 10, 100, "batch")
        world.step()
        world.add(8, 10, 10, priority_class, answer_by=2.0)
        codes.append(world.scheduler.stats().n_unreachable)
    assert codes == [1, 0]


def test_a_request_that_is_late_ends_and_frees_its_place() -> None:
    world = World()
    world.add(1, 10, 10, answer_by=0.3)
    world.scheduler.costs.costs = COSTS._replace(step=1e-6)
    world.add(2, 10, 500, answer_by=1.0)
    world.add(3, 10, 5)
    world.run()
    assert world.codes() == {1: None, 2: "deadline_exceeded", 3: None}
    last = world.told[2][-1]
    assert last.finish == "error"
    assert last.error is not None
    assert last.error.startswith("deadline_ms is over: the request ran, ")
    n_outputs = sum(len(event.tokens) for event in world.told[2])
    assert 0 < n_outputs < 100
    counts = f"10 of 10 prompt tokens computed and {n_outputs} tokens drawn"
    assert counts in (world.told[2][-1].error or "")
    assert world.scheduler.stats().n_expired == 1
    assert world.scheduler.stats().blocks_free + world.scheduler.stats().blocks_cached == 400


def test_a_waiting_request_ends_when_its_first_token_is_late() -> None:
    world = World(n_slots=1)
    world.add(1, 10, 200)
    world.step()
    world.scheduler.costs.costs = COSTS._replace(step=1e-9, token=1e-9)
    world.add(2, 10, 5, ttft_by=1.0)
    world.run()
    assert world.codes() == {1: None, 2: "deadline_exceeded"}
    assert world.told[2][0].error == (
        "ttft_ms is over: the request waited, 0 of 10 prompt tokens computed and 0 tokens drawn; "
        "allow more time or ask for less"
    )


def test_a_first_token_in_time_is_enough_for_ttft() -> None:
    world = World()
    world.add(1, 10, 100, ttft_by=0.1)
    world.run()
    assert world.codes() == {1: None}


def test_ended_requests_are_swept_out() -> None:
    deadlines = Deadlines()
    world = World()
    for i in range(10 * MIN_KEPT):
        request = _request(world, i)
        deadlines.add(request)
        request.finish = "stop"
    assert len(deadlines) <= 2 * MIN_KEPT
    assert deadlines.expired(1e12) == []
    assert deadlines.is_idle


def _request(world: World, i: int) -> Request:
    asked = EngineRequest(
        i, (1,), TokenParams(seed=0, max_tokens=4), standing=Standing(answer_by=1e9 + i)
    )
    return new_request(asked, i, 4, None)  # type: ignore[arg-type]  # has no blocks


@pytest.mark.parametrize("n_slots", [1, 4])
def test_waits_are_foretold_within_a_factor_of_two(n_slots: int) -> None:
    world = World(n_slots=n_slots, n_blocks=2000)
    foretold: dict[int, tuple[float, float]] = {}
    for i in range(5 * n_slots + 5):
        wait = world.scheduler.stats().last_wait
        if wait and i % 2:
            foretold[i] = (world.now, wait)
        world.add(i, 10 + 13 * i % 50, 100 + 37 * i % 60)
        for _ in range(5):
            world.step()
    world.run()
    truths = {i: world.first[i] - when for i, (when, _) in foretold.items()}
    long = [i for i, truth in truths.items() if truth > 0.5]
    assert len(long) >= 3
    for i in long:
        assert truths[i] / 2 <= foretold[i][1] <= 2 * truths[i], (i, truths[i], foretold[i])


def test_answers_that_stop_by_themselves_are_expected_to_be_as_long_as_the_last() -> None:
    world = World(n_slots=1)
    params = TokenParams(seed=0, max_tokens=2000, stop_ids=tuple(range(64)))
    for i in range(200):
        world.scheduler.add(EngineRequest(i, (5,) * 10, replace(params, seed=i)))
        world.run()
    world.scheduler.add(
        EngineRequest(500, (5,) * 10, params, standing=Standing(answer_by=world.now + 0.5))
    )
    world.run()
    assert world.codes()[500] is None


def test_nobody_is_refused_for_lengths_that_nobody_has_seen() -> None:
    world = World()
    stopping = TokenParams(seed=1, max_tokens=1000, stop_ids=tuple(range(64)))
    world.scheduler.add(
        EngineRequest(1, (5,) * 10, stopping, standing=Standing(answer_by=world.now + 0.5))
    )
    world.run()
    assert world.codes() == {1: None}


def test_refusals_for_long_answers_do_not_go_on_for_ever() -> None:
    world = World(n_slots=1)
    long = TokenParams(seed=1, max_tokens=600, stop_ids=(1000,))
    world.scheduler.add(EngineRequest(0, (5,) * 10, long))
    world.run()
    n_refused = 0
    short = replace(long, stop_ids=tuple(range(64)))
    for i in range(1, 100):
        world.scheduler.add(
            EngineRequest(i, (5,) * 10, short, standing=Standing(answer_by=world.now + 1.0))
        )
        world.run()
        n_refused += world.codes()[i] == "deadline_unreachable"
    assert 1 <= n_refused < 60
