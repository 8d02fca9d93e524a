"""Drives an engine through requests that arrive at given times, in real or in virtual time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from kvasir.core.errors import KvasirError
from kvasir.core.request import EngineRequest
from kvasir.engine.engine import Engine


class Clock(Protocol):
    """Seconds that pass by themselves, or only when told."""

    def now(self) -> float: ...

    def wait_until(self, when: float) -> None: ...

    def spend(self, seconds: float) -> None:
        """A step took ``seconds``."""
        ...


class WallClock:
    def now(self) -> float:
        return time.monotonic()

    def wait_until(self, when: float) -> None:
        time.sleep(max(0.0, when - self.now()))

    def spend(self, seconds: float) -> None:
        """It has passed already."""


class VirtualClock:
    """Stands still until it is told."""

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def wait_until(self, when: float) -> None:
        self._now = max(self._now, when)

    def spend(self, seconds: float) -> None:
        self._now += seconds


@dataclass(slots=True)
class Trace:
    """One request: seconds since the start of the run, and what it gave."""

    arrived: float
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """Of each token."""
    n_cached: int = 0
    finish: str | None = None

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.times[0] - self.arrived

    @property
    def gaps(self) -> list[float]:
        """Seconds between consecutive tokens."""
        return [b - a for a, b in zip(self.times, self.times[1:], strict=False)]


@dataclass(slots=True)
class Run:
    """A run in progress; ``watch`` may look at it after every step, and cancel. Ids from
    ``may_fail`` on are of requests that may end with an error."""

    engine: Engine
    clock: Clock
    start: float
    traces: dict[int, Trace] = field(default_factory=dict)
    may_fail: float = inf

    @property
    def seconds(self) -> float:
        """From the first arrival to the last token so far."""
        return max((trace.times[-1] for trace in self.traces.values() if trace.times), default=0.0)

    @property
    def n_outputs(self) -> int:
        return sum(len(trace.tokens) for trace in self.traces.values())


Arrival = tuple[float, EngineRequest]
Watch = Callable[[Run], None]


def at_once(requests: Iterable[EngineRequest]) -> list[Arrival]:
    """All at the start."""
    return [(0.0, request) for request in requests]


def drive(
    engine: Engine,
    arrivals: Sequence[Arrival],
    clock: Clock,
    watch: Watch | None = None,
    may_fail: float = inf,
) -> Run:
    """Adds each request when its time has come, in seconds since the start, and computes all.

    Raises KvasirError when one fails whose id is below ``may_fail``.
    """
    run = Run(engine, clock, clock.now(), may_fail=may_fail)
    due = sorted(arrivals, key=lambda arrival: arrival[0])[::-1]  # the next one is popped
    while due or engine.has_work:
        while due and run.start + due[-1][0] <= clock.now():
            when, request = due.pop()
            run.traces[request.id] = Trace(when)
            engine.submit((request,))
        if engine.has_work:
            _step(run)
            if watch is not None:
                watch(run)
        elif due:
            clock.wait_until(run.start + due[-1][0])
    return run


def _step(run: Run) -> None:
    before = run.engine.stats()
    events = run.engine.step()
    if events.stats.step != before.step:
        run.clock.spend(events.stats.step_seconds - before.step_seconds)
    now = run.clock.now() - run.start
    for event in events.events:
        if event.finish == "error" and event.id < run.may_fail:
            raise KvasirError(f"a measured request failed: {event.error}")
        trace = run.traces[event.id]
        trace.tokens += event.tokens
        trace.times += [now] * len(event.tokens)
        trace.n_cached += event.n_cached
        trace.finish = event.finish


def equal_tokens(*runs: Run) -> bool:
    """Whether every request gave the same tokens in all runs; of a cancelled one as many as both
    have."""
    first, *others = runs
    return all(
        _agree(trace, other.traces[request_id])
        for other in others
        for request_id, trace in first.traces.items()
        if request_id in other.traces
    )


def _agree(a: Trace, b: Trace) -> bool:
    if "cancelled" in (a.finish, b.finish):
        n = min(len(a.tokens), len(b.tokens))
        return a.tokens[:n] == b.tokens[:n]
    return a.tokens == b.tokens
