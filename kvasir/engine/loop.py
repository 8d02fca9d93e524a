"""The two ways to drive plan, run and commit. They give the same answers."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.core.plan import StepPlan, StepResult
from kvasir.exec.base import Executor
from kvasir.sched.scheduler import Scheduler


class EngineFault(KvasirError):
    """The executor failed inside a step: the engine cannot go on."""

    code = "engine_fault"


class Loop(Protocol):
    def step(self) -> tuple[TokenEvent, ...]:
        """Commit one plan and tell the news; no news when there is nothing to compute."""
        ...

    def close(self) -> None: ...


class PlainLoop:
    """Plan, run, commit: the readable specification of the overlapped loop."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor = executor
        self._scheduler = scheduler

    def step(self) -> tuple[TokenEvent, ...]:
        plan = self._scheduler.plan()
        if plan is None:
            return self._scheduler.take_events()
        return self._scheduler.commit(plan, _run(self._executor, plan))

    def close(self) -> None:
        """Nothing runs between steps."""


@dataclass(frozen=True, slots=True)
class _Flight:
    """What is carried from one step to the next: a plan that runs."""

    plan: StepPlan
    result: Future[StepResult]


class OverlappedLoop:
    """Step n+1 is planned while n runs on a worker thread, and starts before n is committed."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor = executor
        self._scheduler = scheduler
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kvasir-step")
        self._flight: _Flight | None = None

    def step(self) -> tuple[TokenEvent, ...]:
        running = self._flight or self._launch()
        if running is None:
            return self._scheduler.take_events()
        following = self._scheduler.plan()
        self._flight = None if following is None else self._submit(following)
        return self._scheduler.commit(running.plan, running.result.result())

    def close(self) -> None:
        self._worker.shutdown(wait=True)

    def _launch(self) -> _Flight | None:
        plan = self._scheduler.plan()
        return None if plan is None else self._submit(plan)

    def _submit(self, plan: StepPlan) -> _Flight:
        return _Flight(plan, self._worker.submit(_run, self._executor, plan))


def _run(executor: Executor, plan: StepPlan) -> StepResult:
    try:
        return executor.run(plan)
    except Exception as error:
        raise EngineFault(
            f"step {plan.step} of {len(plan.rows)} rows and {plan.n_tokens} tokens failed: "
            f"{type(error).__name__}: {error}"
        ) from error
