"""The two ways to drive plan, run and commit. They give the same answers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.core.plan import StepPlan
from kvasir.engine.masking import Masking
from kvasir.exec.base import Executor, Handle
from kvasir.sched.request import Request
from kvasir.sched.scheduler import Scheduler

LATE_SHARE, LATE_SECONDS = 0.7, 0.003
"""Of what a running step is expected to take, after which the next is planned; and how much
sooner, so that it is there in time however late this thread wakes up. Short ones do not wait."""


class EngineFault(KvasirError):
    """The executor failed inside a step: the engine cannot go on."""

    code = "engine_fault"


class Watch(Protocol):
    """Is shown what is being computed."""

    def launched(self, owners: Sequence[Request], seconds: float, towers: float) -> None:
        """A plan with rows of ``owners``, expected to take ``seconds``, runs now or after the one
        before. ``towers``: seconds that those of its images may take beside."""
        ...

    def done(self) -> None:
        """The oldest plan under way has its result."""
        ...


class _Flight(NamedTuple):
    """A plan that runs, or waits for the one before."""

    plan: StepPlan
    handle: Handle
    seconds: float
    """That it is expected to take."""


class Loop:
    """Plan, run, commit: the readable specification of the overlapped loop."""

    def __init__(self, executor: Executor, scheduler: Scheduler, masking: Masking) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._masking = masking
        self.watch: Watch | None = None
        self._landed = 0.0
        """When the newest result came, and the step behind it began."""

    @property
    def lead(self) -> float:
        """Seconds for which the next ``step`` may wait at no cost, if what runs takes as long as it
        is expected to: what comes meanwhile is in its plan."""
        return 0.0

    def step(self) -> tuple[TokenEvent, ...]:
        """Commit one plan and tell the news; no news when there is nothing to compute."""
        flight = self._fill(self._launch())
        return self._rest() if flight is None else self._commit(flight)

    def _launch(self) -> _Flight | None:
        self._masking.jump()
        plan = self._scheduler.plan()
        if plan is None:
            return None
        owners, seconds, _, towers = self._scheduler.newest
        if self.watch is not None:
            self.watch.launched(owners, seconds, towers)
        with _faults_of(plan):
            return _Flight(plan, self._executor.start(plan), seconds)

    def _fill(self, flight: _Flight | None) -> _Flight | None:
        """Bring the masks that it waits for: what was launched before is committed."""
        if flight is not None:
            self._masking.fill(flight.plan, flight.handle, flight.seconds)
        return flight

    def _commit(self, flight: _Flight) -> tuple[TokenEvent, ...]:
        self._masking.settle()
        with _faults_of(flight.plan):
            result = flight.handle.result()
        self._landed = time.monotonic()
        result = self._masking.heard(flight.plan, result)
        if self.watch is not None:
            self.watch.done()
        events = self._scheduler.commit(flight.plan, result)
        self._masking.drew()
        return events

    def _rest(self) -> tuple[TokenEvent, ...]:
        """There is nothing to compute."""
        self._masking.rest()
        return self._scheduler.take_events()


class OverlappedLoop(Loop):
    """Step n+1 is planned while n runs, and queued behind it before n is committed. Where it would
    begin with a token that may turn out to be forced, and has nothing else to compute, it is
    planned as soon as n is committed: what n gave is told while it runs."""

    _flight: _Flight | None = None
    _late = 0.0
    """Until when the plan behind it may wait."""

    @property
    def lead(self) -> float:
        if self._flight is None or self._flight.handle.is_done:
            return 0.0
        return max(0.0, self._late - time.monotonic())

    def step(self) -> tuple[TokenEvent, ...]:
        running = self._flight or self._fill(self._launch())
        if running is None:
            return self._rest()
        is_decided = self._masking.decides(running.plan)
        self._flight = None if is_decided else self._launch()
        events = self._commit(running)
        if is_decided:
            self._flight = self._launch()
            events += self._scheduler.take_events()
        self._fill(self._flight)
        if self._flight is not None:  # by what the step before it has taught
            _, _, least, _ = self._scheduler.newest
            self._late = self._landed + LATE_SHARE * least - LATE_SECONDS
        return events


@contextmanager
def _faults_of(plan: StepPlan) -> Iterator[None]:
    """Raises EngineFault for whatever the executor raises."""
    try:
        yield
    except Exception as error:
        raise EngineFault(
            f"step {plan.step} of {len(plan.rows)} rows and {plan.n_tokens} tokens failed: "
            f"{type(error).__name__}: {error}"
        ) from error
