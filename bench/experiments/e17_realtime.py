"""E17: a trickle of realtime requests under a flood of batch requests.

In virtual time, where every run is the same, and once on the model, where steps cost what they do.
"""

from __future__ import annotations

import numpy as np

from bench.experiments.base import Chart, Experiment, Json, Outcome, Settings
from bench.experiments.drive import Arrival, Run, drive, equal_tokens
from bench.experiments.engines import (
    FAKE_VOCAB,
    SEED,
    STEP_COST,
    Models,
    cpu_like,
    fake_engine,
    greedy,
    tokens,
)
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import SchedulerConfig, SchedulingPolicy
from kvasir.config.sharing import parse_sharing
from kvasir.core.request import PriorityClass, Standing
from kvasir.core.sizes import EngineSizes

REALTIME, FLOOD = 0, 100_000
"""First request ids of the two kinds."""
RATE = 2.0
"""Realtime requests per second."""
N_REAL = (30, 90)
"""Realtime and batch requests on the model."""


def run(settings: Settings) -> Outcome:
    n_realtime, n_flood = settings.pick((60, 240), (4, 12))
    batch = _flood(n_flood, "batch")
    mixed = [*_trickle(n_realtime, "realtime"), *batch]
    plain = [*_trickle(n_realtime, "standard"), *_flood(n_flood, "standard")]
    flood = _run(settings, batch)
    arms = {
        "quiet": _run(settings, _trickle(n_realtime, "realtime")),
        "first come, first served": _run(settings, plain, policy="fcfs"),
        "classes, preempting after 100 ms": _run(settings, mixed, threshold=100),
        "classes, defaults": _run(settings, mixed),
    }
    window = n_realtime / RATE
    points = [{"arm": name, **_point(found, window)} for name, found in arms.items()]
    for point in points:
        point["ttft_ratio"] = round(point["ttft_p99"] / points[0]["ttft_p99"], 2)
        point["batch_kept"] = round(point["batch_rate"] / _batch_rate(flood, window), 3)
    real, described, is_same = _on_model(settings)
    words = [
        f"{p['arm']}: {p['ttft_ratio']:.1f}x ({p['ttft_p99'] * 1e3:.0f} ms), batch keeps "
        f"{p['batch_kept']:.0%}"
        for p in points[1:]
    ]
    return Outcome(
        measured=(
            f"realtime p99 TTFT against its quiet {points[0]['ttft_p99'] * 1e3:.0f} ms: "
            f"{'; '.join(words)} of its throughput alone; on the model, defaults: "
            f"{real['ttft_ratio']:.1f}x its quiet {real['quiet_p99'] * 1e3:.0f} ms, batch keeps "
            f"{real['batch_kept']:.0%}"
        ),
        conditions=(
            f"{n_realtime} realtime requests of 128 + 32 tokens at {RATE:g} a second beside "
            f"{n_flood} batch requests of 256 + 128 tokens that all wait; 32 at a time, 128 "
            f"tokens a step; virtual time, a step costs {STEP_COST}; on the model {N_REAL[0]} "
            f"realtime and {N_REAL[1]} batch requests, chunks of 128"
        ),
        summary={
            "ttft_ratio": points[-1]["ttft_ratio"],
            "batch_kept": points[-1]["batch_kept"],
            "model": real,
        },
        points=points,
        met=all(x["ttft_ratio"] <= 2 and x["batch_kept"] >= 0.8 for x in (points[-1], real)),
        identical=all(equal_tokens(found, flood) for found in arms.values())
        and equal_tokens(*arms.values())
        and is_same,
        engine=described,
    )


def _on_model(settings: Settings) -> tuple[Json, Json, bool]:
    """The ratios, the engine, and whether all runs gave the same tokens."""
    n_realtime, n_flood = settings.pick(N_REAL, (3, 4))
    window = n_realtime / RATE
    runs: list[Run] = []
    with Models(settings).engine(
        max_num_seqs=32, max_num_batched_tokens=128, max_model_len=512, enable_prefix_caching=False
    ) as made:
        trickle, batch = _trickle(n_realtime, "realtime"), _flood(n_flood, "batch")
        for arrivals in (trickle[:2], trickle, batch, [*trickle, *batch]):
            runs.append(drive(made.engine, arrivals, made.clock))
        described = made.described
    _, quiet, flood, mixed = runs
    quiet_p99, p99 = (_point(found, window)["ttft_p99"] for found in (quiet, mixed))
    point = {
        "quiet_p99": quiet_p99,
        "ttft_p99": p99,
        "ttft_ratio": round(p99 / quiet_p99, 2),
        "batch_kept": round(_batch_rate(mixed, window) / _batch_rate(flood, window), 3),
    }
    return point, described, equal_tokens(mixed, quiet) and equal_tokens(mixed, flood)


def _run(
    settings: Settings,
    arrivals: list[Arrival],
    *,
    policy: SchedulingPolicy = "fair",
    threshold: int | None = None,
) -> Run:
    """What is not given here has the default of a server."""
    options = EngineOptions(scheduling_policy=policy, preemption_threshold_ms=threshold)
    config = SchedulerConfig(
        EngineSizes(
            vocab_size=FAKE_VOCAB,
            max_model_len=512,
            max_num_seqs=settings.pick(32, 4),
            max_num_batched_tokens=128,
            n_blocks=settings.pick(1024, 128),
            block_size=16,
        ),
        enable_prefix_caching=options.enable_prefix_caching,
        sharing=parse_sharing(options),
    )
    made = fake_engine(config, cpu_like)
    return drive(made.engine, arrivals, made.clock)


def _trickle(n: int, kind: PriorityClass) -> list[Arrival]:
    gaps = np.random.default_rng((SEED, n)).exponential(1 / RATE, n)
    return [
        (float(when), greedy(i, tokens(FAKE_VOCAB, 128, 1, i), 32, standing=Standing(kind)))
        for i, when in enumerate(np.cumsum(gaps))
    ]


def _flood(n: int, kind: PriorityClass) -> list[Arrival]:
    return [
        (
            0.0,
            greedy(FLOOD + i, tokens(FAKE_VOCAB, 256, 2, i), 128, standing=Standing(kind)),
        )
        for i in range(n)
    ]


def _point(found: Run, window: float) -> Json:
    ttfts = [trace.ttft for i, trace in found.traces.items() if i < FLOOD]
    return {
        "ttft_p50": round(float(np.median(ttfts)), 4),
        "ttft_p99": round(float(np.percentile(ttfts, 99)), 4),
        "batch_rate": round(_batch_rate(found, window), 2),
    }


def _batch_rate(found: Run, window: float) -> float:
    """Output tokens of batch requests per second of the window."""
    times = [time for i, trace in found.traces.items() if i >= FLOOD for time in trace.times]
    return sum(time <= window for time in times) / window


EXPERIMENT = Experiment(
    name="e17-realtime",
    title="First token of realtime requests under a flood of batch requests",
    claim="priority classes with preemption keep realtime requests fast under load",
    target="realtime p99 TTFT at most 2x quiet; batch keeps at least 80 % of its throughput",
    uses_model=True,
    seconds=90,
    chart=Chart(
        x="arm", x_label="scheduling", y_label="seconds",
        lines={"ttft_p50": "median", "ttft_p99": "p99"}, kind="bar", log_y=True,
    ),
    run=run,
)  # fmt: skip
