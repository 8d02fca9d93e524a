"""What planning costs: a step with many running and waiting requests, and a long lookup."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.engines import FAKE_VOCAB, greedy, tokens
from bench.experiments.turnover import N_OUTPUTS, Variant, measure, typical, variants
from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import KvasirError
from kvasir.core.plan import RowOutput, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.sched.scheduler import Scheduler

N_RUNNING = 256
N_WAITING = 10_000
LONG = 32_768
REPEAT = 3
MAX_MEAN = 0.5e-3
"""Seconds to plan, commit and say how things stand, with outputs of 16."""
MAX_STEP = 3e-3
"""The same of the longest step."""
SCHEDULER_ONLY: Json = {"model": "none", "executor": "none: outputs are constants"}


@dataclass(frozen=True, slots=True)
class _Cost:
    """Seconds of plan and commit together."""

    median: float
    p99: float


def run(settings: Settings) -> Outcome:
    n_running, n_waiting, n_long = settings.pick((N_RUNNING, N_WAITING, LONG), (8, 40, 256))
    n_steps = settings.pick(200, 5)
    points: list[Json] = []
    for share in (0, 2, 8, 16):
        waiting = n_waiting * share // 16
        cost = _steps(n_running, waiting, n_steps)
        turning = measure(Variant("plain"), n_running, waiting, n_steps)
        point = {"waiting": waiting, "plan_commit": cost.median, "p99": cost.p99}
        points.append(point | {"turnover": turning["mean"], "turnover_p99": turning["p99"]})
    running = [
        {"running": n, "plan_commit": _steps(n, n_waiting, n_steps).median}
        for n in (n_running // 8, n_running // 2, n_running)
    ]
    turnover = [
        typical(variant, n_running, n_waiting, settings.pick(128, 10), settings.pick(REPEAT, 1))
        for variant in variants(n_waiting)
    ]
    # the last one is there to compare with
    mean = max(each["mean"] for each in turnover[:-1])
    longest = max(each["max"] for each in turnover[:-1])
    cold, warm = _lookup(n_long)
    last = points[-1]
    return Outcome(
        measured=(
            f"{last['plan_commit'] * 1e3:.3f} ms a step (p99 {last['p99'] * 1e3:.3f}) at "
            f"{n_running} running and {n_waiting} waiting, {points[0]['plan_commit'] * 1e3:.3f} ms "
            f"with none waiting; admission of a cached prompt of {n_long} tokens "
            f"{cold * 1e3:.2f} ms, without the hit {warm * 1e3:.2f} ms; with outputs of "
            f"{N_OUTPUTS}, plan, commit and stats (mean, max): {_listed(turnover)}"
        ),
        conditions=(
            "scheduler alone, one thread; wall time; with outputs of 16 as many requests arrive as "
            f"end, median of {REPEAT} runs"
        ),
        summary={
            "turnover_mean_ms": round(mean * 1e3, 4),
            "turnover_max_ms": round(longest * 1e3, 3),
            "turnover": turnover,
            "step_ms": round(last["plan_commit"] * 1e3, 4),
            "lookup_ms": round((cold - warm) * 1e3, 3),
            "admission_ms": round(cold * 1e3, 3),
            "by_running": running,
        },
        points=points,
        met=(
            last["plan_commit"] <= 0.3e-3
            and cold - warm <= 2e-3
            and mean <= MAX_MEAN
            and longest <= MAX_STEP
        ),
        identical=None,
        engine=SCHEDULER_ONLY,
    )


def _listed(turnover: Sequence[Json]) -> str:
    return ", ".join(
        f"{each['variant']} {each['mean'] * 1e3:.2f}, {each['max'] * 1e3:.1f} ms"
        for each in turnover
    )


def _config(n_running: int, n_tokens: int, n_blocks: int, length: int) -> SchedulerConfig:
    return SchedulerConfig(
        EngineSizes(
            vocab_size=FAKE_VOCAB,
            max_model_len=length,
            max_num_seqs=n_running,
            max_num_batched_tokens=n_tokens,
            n_blocks=n_blocks,
            block_size=16,
        ),
        enable_prefix_caching=True,
    )


def _steps(n_running: int, n_waiting: int, n_steps: int) -> _Cost:
    """Requests outlast the measurement. Their prompts differ in length, so that in every step one
    of them in sixteen fills a block."""
    scheduler = Scheduler(_config(n_running, n_running * 48, n_running * 64, 1024))
    for i in range(n_running + n_waiting):
        scheduler.add(greedy(i, tokens(FAKE_VOCAB, 32 + i % 16, 1, i), 900))
    for _ in range(3):
        _step(scheduler)
    costs = sorted(_step(scheduler) for _ in range(n_steps))
    return _Cost(
        round(statistics.median(costs), 7), round(costs[min(n_steps - 1, n_steps * 99 // 100)], 7)
    )


def _step(scheduler: Scheduler) -> float:
    """Seconds of one plan and its commit; what an executor would do is not counted."""
    began = time.perf_counter()
    plan = scheduler.plan()
    planned = time.perf_counter() - began
    if plan is None:
        raise KvasirError("nothing to plan: the measured requests have ended")
    result = _result(plan)
    began = time.perf_counter()
    scheduler.commit(plan, result)
    return planned + time.perf_counter() - began


def _result(plan: StepPlan) -> StepResult:
    return StepResult((RowOutput(7),) * plan.n_logits, 0.001)


def _lookup(n_long: int) -> tuple[float, float]:
    """Seconds to plan a prompt that is cached but for its last tokens, and one that is new."""
    scheduler = Scheduler(_config(2, n_long, n_long // 8, n_long + 64))
    prompt = tokens(FAKE_VOCAB, n_long, 3)
    scheduler.add(greedy(0, prompt, 1))
    _finish(scheduler)
    cached, new = [], []
    for i in range(1, 6):
        scheduler.add(greedy(2 * i, (*prompt[:-8], *tokens(FAKE_VOCAB, 8, 4, i)), 1))
        cached.append(_admission(scheduler))
        scheduler.add(greedy(2 * i + 1, tokens(FAKE_VOCAB, 64, 5, i), 1))
        new.append(_admission(scheduler))
    return statistics.median(cached), statistics.median(new)


def _admission(scheduler: Scheduler) -> float:
    began = time.perf_counter()
    plan = scheduler.plan()
    seconds = time.perf_counter() - began
    if plan is not None:
        scheduler.commit(plan, _result(plan))
    _finish(scheduler)
    return seconds


def _finish(scheduler: Scheduler) -> None:
    while scheduler.has_work:
        plan = scheduler.plan()
        if plan is not None:
            scheduler.commit(plan, _result(plan))
        scheduler.take_events()


EXPERIMENT = Experiment(
    name="scheduler-cost",
    title="Time to plan and commit a step of 256 running requests",
    claim="scheduling must not show beside the step (no figure in the sources)",
    target=(
        "at most 0.3 ms a step with 10,000 waiting, lookup of 32k tokens at most 2 ms, linear; "
        "with outputs of 16 at most 0.5 ms in the mean and 3 ms at most, whoever waits"
    ),
    uses_model=False,
    seconds=60,
    chart=Chart(
        x="waiting",
        x_label="waiting requests",
        y_label="seconds",
        lines={
            "plan_commit": "median",
            "p99": "p99",
            "turnover": "mean, outputs of 16",
            "turnover_p99": "p99, outputs of 16",
        },
    ),
    run=run,
)
