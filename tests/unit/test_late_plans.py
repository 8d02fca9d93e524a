"""A plan is made late in the step before it: what comes meanwhile waits for that step alone."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import structs

from kvasir.core.messages import StepEvents
from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.engine import Engine
from kvasir.engine.loop import LATE_SECONDS, LATE_SHARE
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.serve import frames, framing
from kvasir.serve.engine_child import Inbox, serve
from kvasir.serve.messages import Shutdown, Submit, ToEngine
from kvasir.speculate.base import Draft, Known, Proposer
from kvasir.timing.cost import NEUTRAL, CostModel
from tests.sizes import config_of

SECONDS = 0.08
"""Of a step."""
PARAMS = TokenParams(seed=5, max_tokens=200)
CONFIG = config_of(256, 4, 64, 64, 16, vocab_size=101)


class Slow(FakeExecutor):
    def run(self, plan: StepPlan) -> StepResult:
        time.sleep(SECONDS)
        return structs.replace(super().run(plan), seconds=SECONDS)


def engine(*, overlap: bool = True, costs: CostModel | None = None) -> Engine:
    return Engine(Slow(CONFIG.sizes), Scheduler(CONFIG, costs=costs), overlap=overlap)


def request(i: int) -> EngineRequest:
    return EngineRequest(i, tuple(range(2 + i, 12 + i)), PARAMS)


@pytest.mark.parametrize("overlap", [False, True])
def test_how_long_a_plan_may_wait(overlap: bool) -> None:
    made = engine(overlap=overlap)
    made.add(request(0))
    assert made.lead == 0
    for _ in range(8):
        made.step()
    found = [made.lead]
    for _ in range(4):  # where this thread gets a CPU late, little is left
        made.step()
        found.append(made.lead)
    assert (0.3 * SECONDS < max(found) < LATE_SHARE * 1.2 * SECONDS - LATE_SECONDS) == overlap
    time.sleep(made.lead)
    assert made.lead == 0
    made.close()


def test_nobody_waits_for_what_the_first_steps_were_expected_to_take() -> None:
    """Of a machine that is ten times as fast as it was thought to be."""
    slow = NEUTRAL._replace(token=10 * SECONDS / 64)
    made = Engine(Slow(CONFIG.sizes), Scheduler(CONFIG, costs=CostModel(slow)), overlap=True)
    made.add(EngineRequest(0, tuple(range(2, 98)) * 2, PARAMS))
    made.step()
    assert made.lead < SECONDS
    made.close()


class Held(FakeExecutor):
    """Steps end when they are let."""

    def __init__(self, sizes: EngineSizes) -> None:
        super().__init__(sizes)
        self.let = threading.Semaphore(0)

    def run(self, plan: StepPlan) -> StepResult:
        self.let.acquire()
        return super().run(plan)


def leads(executor: Held, made: Engine, n: int) -> list[float]:
    """How long each plan behind the next ``n`` steps may wait while they run."""
    found = []
    for _ in range(n):
        executor.let.release()
        made.step()
        found.append(made.lead)
    executor.let.release(2)
    return found


class Four(Proposer):
    """Drafts as many tokens as it may."""

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        return [Draft((7,) * k) for _ in requests]


def test_nobody_waits_for_drafts_at_the_price_of_a_prompts_tokens() -> None:
    """A token of a prompt takes a second here, and no step has said otherwise."""
    config = config_of(256, 4, 64, 64, 16, vocab_size=101, max_draft_tokens=4, adapts_drafts=False)
    costs = CostModel(NEUTRAL._replace(token=1.0))
    executor = Held(config.sizes)
    made = Engine(executor, Scheduler(config, Four(), costs=costs), overlap=True)
    made.add(request(0))
    made.add(structs.replace(request(1), params=structs.replace(PARAMS, max_drafts=0)))
    assert 0.5 < max(leads(executor, made, 8)) < 2 * LATE_SHARE
    made.close()


def test_nobody_waits_once_a_step_has_ended() -> None:
    """It was expected to take a minute, as after an accident of the machine."""
    costs = CostModel(NEUTRAL._replace(step=60.0))
    executor = Held(CONFIG.sizes)
    made = Engine(executor, Scheduler(CONFIG, costs=costs), overlap=True)
    made.add(request(0))
    (waits,) = leads(executor, made, 1)
    assert waits > 10 * SECONDS
    deadline = time.monotonic() + 10
    while made.lead and time.monotonic() < deadline:
        time.sleep(0.001)
    assert made.lead == 0
    made.close()


@pytest.fixture(params=[None, 600.0])
def served(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    """The other end of an engine process's socket; what its first steps are expected to take."""
    ours, theirs = socket.socketpair()
    heart: Any = SimpleNamespace(turn=int, launched=lambda *_: None, done=int)
    costs = CostModel(NEUTRAL._replace(step=request.param)) if request.param else None
    inbox, made = Inbox(theirs), engine(costs=costs)
    thread = threading.Thread(target=serve, args=(made, inbox, theirs, heart))
    with ours, theirs:
        thread.start()
        yield ours
        tell(ours, Shutdown(drain=False))
        thread.join()
        inbox.ended()
        made.close()


def tell(sock: socket.socket, message: ToEngine) -> None:
    sock.sendall(frames.encode(message))


def step(sock: socket.socket) -> set[int]:
    """Whose tokens the next step gave."""
    while True:
        payload = framing.receive(sock)
        assert payload is not None
        said = frames.decode_from_engine(payload)
        if isinstance(said, StepEvents) and said.events:
            return {event.id for event in said.events if event.tokens}


def test_what_comes_in_a_step_is_in_the_next(served: socket.socket) -> None:
    tell(served, Submit(request(0)))
    assert [step(served) for _ in range(8)] == [{0}] * 8
    tell(served, Submit(request(1)))
    assert [step(served) for _ in range(3)] == [{0}, {0, 1}, {0, 1}]
