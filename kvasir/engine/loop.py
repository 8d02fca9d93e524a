"""The two ways to drive plan, run and commit. They give the same answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.core.plan import StepPlan, StepResult
from kvasir.exec.base import Executor, Handle
from kvasir.sched.scheduler import Scheduler


class EngineFault(KvasirError):
    """The executor failed inside a step: the engine cannot go on."""

    code = "engine_fault"


class Loop(Protocol):
    def step(self) -> tuple[TokenEvent, ...]:
        """Commit one plan and tell the news; no news when there is nothing to compute."""
        ...


@dataclass(frozen=True, slots=True)
class _Flight:
    """A plan that runs, or waits for the one before."""

    plan: StepPlan
    handle: Handle

    def result(self) -> StepResult:
        with _faults_of(self.plan):
            return self.handle.result()


class PlainLoop:
    """Plan, run, commit: the readable specification of the overlapped loop."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor = executor
        self._scheduler = scheduler

    def step(self) -> tuple[TokenEvent, ...]:
        plan = self._scheduler.plan()
        if plan is None:
            return self._scheduler.take_events()
        return self._scheduler.commit(plan, _start(self._executor, plan).result())


class OverlappedLoop:
    """Step n+1 is planned while n runs, and queued behind it before n is committed."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._flight: _Flight | None = None

    def step(self) -> tuple[TokenEvent, ...]:
        running = self._flight or self._launch()
        if running is None:
            return self._scheduler.take_events()
        self._flight = self._launch()
        return self._scheduler.commit(running.plan, running.result())

    def _launch(self) -> _Flight | None:
        plan = self._scheduler.plan()
        return None if plan is None else _start(self._executor, plan)


def _start(executor: Executor, plan: StepPlan) -> _Flight:
    with _faults_of(plan):
        return _Flight(plan, executor.start(plan))


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
