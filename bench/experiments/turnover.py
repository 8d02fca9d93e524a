"""Steps of a scheduler whose requests end as fast as others arrive."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from bench.experiments.base import Json
from bench.experiments.drive import VirtualClock
from bench.experiments.engines import FAKE_VOCAB, greedy, tokens
from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import KvasirError
from kvasir.core.plan import RowOutput, StepResult
from kvasir.core.request import EngineRequest, Standing
from kvasir.core.sizes import EngineSizes
from kvasir.sched.scheduler import Scheduler
from kvasir.serve.settle import rarely

N_OUTPUTS = 16
STEP_SECONDS = 0.02
"""Virtual: no step falls into the time of the one before, so that nothing is told from memory."""
FAR = 1e6
"""Seconds to deadlines that are met."""
MAX_PROMPT = 48
N_DRAWN = 1000
"""Prompts whose tokens are drawn at once."""
WARM_STEPS = 3 * N_OUTPUTS


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    n_tenants: int = 1
    has_deadlines: bool = False
    caches: bool = False
    collects: bool = True
    """Garbage as the engine process does; else as Python does by itself."""


def variants(n_tenants: int) -> tuple[Variant, ...]:
    return (
        Variant("plain"),
        Variant("tenants", n_tenants=n_tenants),
        Variant("deadlines", has_deadlines=True),
        Variant("cache", caches=True),
        Variant("all", n_tenants, has_deadlines=True, caches=True),
        Variant("all, Python's own gc", n_tenants, True, True, collects=False),
    )


class Turnover:
    """``n_running`` run, ``n_waiting`` wait, and as many arrive as end."""

    def __init__(self, variant: Variant, n_running: int, n_waiting: int) -> None:
        self._variant = variant
        self._clock = VirtualClock()
        config = SchedulerConfig(
            EngineSizes(
                vocab_size=FAKE_VOCAB,
                max_model_len=1024,
                max_num_seqs=n_running,
                max_num_batched_tokens=n_running * 8,
                n_blocks=n_running * 64,
                block_size=16,
            ),
            enable_prefix_caching=variant.caches,
        )
        self.scheduler = Scheduler(config, clock=self._clock.now)
        self._n_made = 0
        self._drawn: tuple[int, ...] = ()
        for i in range(n_running + n_waiting):
            # the first ones end one after the other, as those do that follow them
            self.scheduler.add(self._request(1 + i % N_OUTPUTS if i < n_running else N_OUTPUTS))
        self.n_ended = 0

    def arrive(self) -> float:
        """As many as ended; the seconds that it took."""
        requests = [self._request(N_OUTPUTS) for _ in range(self.n_ended)]
        began = time.perf_counter()
        for request in requests:
            self.scheduler.add(request)
        return time.perf_counter() - began

    def step(self) -> tuple[float, float, float]:
        """Seconds to plan, to commit and to say how things stand."""
        times = [time.perf_counter()]
        plan = self.scheduler.plan()
        times.append(time.perf_counter())
        if plan is None:
            raise KvasirError("nothing to plan: the measured requests have ended")
        result = StepResult((RowOutput(7),) * plan.n_logits, STEP_SECONDS)
        self._clock.spend(STEP_SECONDS)
        times.append(time.perf_counter())
        events = self.scheduler.commit(plan, result)
        times.append(time.perf_counter())
        self.scheduler.stats()
        times.append(time.perf_counter())
        self.n_ended = sum(event.finish is not None for event in events)
        return times[1] - times[0], times[3] - times[2], times[4] - times[3]

    def _request(self, n_outputs: int) -> EngineRequest:
        i, variant = self._n_made, self._variant
        self._n_made += 1
        due = self._clock.now() + FAR if variant.has_deadlines else inf
        tenant = f"tenant {i % variant.n_tenants}"
        standing = Standing(tenant=tenant, ttft_by=due, answer_by=due)
        at = i % N_DRAWN * MAX_PROMPT
        if not at:
            self._drawn = tokens(FAKE_VOCAB, N_DRAWN * MAX_PROMPT, 1, i)
        return greedy(i, self._drawn[at : at + 32 + i % 16], n_outputs, standing=standing)


class Collections:
    """Seconds that collections of garbage took."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._began = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
        else:
            self.seconds.append(time.perf_counter() - self._began)


@contextmanager
def watched(*, collects: bool) -> Iterator[Collections]:
    """The collections inside, which come as in the engine process, or as Python makes them."""
    seen, before = Collections(), gc.get_threshold()
    if collects:
        rarely()
    gc.collect()
    gc.callbacks.append(seen)
    try:
        yield seen
    finally:
        gc.callbacks.remove(seen)
        gc.set_threshold(*before)


def measure(variant: Variant, n_running: int, n_waiting: int, n_steps: int) -> Json:
    """Of a step in seconds: mean, p99 and maximum of plan, commit and stats together, their parts,
    and what of it was garbage collection; and of an arrival, each counted for itself."""
    with watched(collects=variant.collects) as collections:
        load = Turnover(variant, n_running, n_waiting)
        for _ in range(WARM_STEPS):
            load.arrive()
            load.step()
        collections.seconds.clear()
        n_arrived, arriving = 0, 0.0
        parts = []
        for _ in range(n_steps):
            n_arrived += load.n_ended
            arriving += load.arrive()
            parts.append(load.step())
    whole = sorted(map(sum, parts))
    plan, commit, stats = (round(sum(each) / n_steps, 7) for each in zip(*parts, strict=True))
    return {
        "variant": variant.name,
        "waiting": n_waiting,
        "mean": round(sum(whole) / n_steps, 7),
        "p99": round(whole[min(n_steps - 1, n_steps * 99 // 100)], 7),
        "max": round(whole[-1], 7),
        "plan": plan,
        "commit": commit,
        "stats": stats,
        "arrival": round(arriving / max(n_arrived, 1), 7),
        "ended_per_step": round(n_arrived / n_steps, 2),
        "gc_mean": round(sum(collections.seconds) / n_steps, 7),
        "gc_max": round(max(collections.seconds, default=0.0), 7),
    }


def typical(variant: Variant, n_running: int, n_waiting: int, n_steps: int, n_runs: int) -> Json:
    """Of every figure the median of some runs."""
    runs = [measure(variant, n_running, n_waiting, n_steps) for _ in range(n_runs)]
    middle = {
        name: statistics.median(run[name] for run in runs)
        for name, value in runs[0].items()
        if isinstance(value, float)
    }
    return runs[0] | middle
