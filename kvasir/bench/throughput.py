"""Many requests at once: output tokens over the whole wall time, prefill included."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from kvasir.bench.fingerprint import Meter
from kvasir.bench.report import outside_native, summary
from kvasir.bench.workload import Workload

WARM_OUT = 4
"""Output tokens of each request of the run that warms up."""


@dataclass(frozen=True, slots=True)
class ThroughputSettings:
    num_prompts: int = 64
    input_len: int = 128
    output_len: int = 128
    repeat: int = 3


def measure_throughput(workload: Workload, settings: ThroughputSettings) -> dict[str, Any]:
    """Rates in tokens per second, times in seconds. A first run, of few outputs, only warms up."""
    n_in, n_out, n_requests = settings.input_len, settings.output_len, settings.num_prompts
    workload.run(n_requests, n_in, min(n_out, WARM_OUT), key=0)
    walls, firsts, foreign = [], [], []
    before, native = workload.built.engine.stats(), workload.native_seconds
    for key in range(1, settings.repeat + 1):
        with Meter() as meter:
            timelines = workload.run(n_requests, n_in, n_out, key)
        walls.append(max(timeline.last for timeline in timelines))
        firsts.append(statistics.median(timeline.first for timeline in timelines))
        foreign.append(meter.foreign)
    after = workload.built.engine.stats()
    return {
        "num_prompts": n_requests,
        "input_len": n_in,
        "output_len": n_out,
        "output_tokens_per_second": summary([n_requests * n_out / wall for wall in walls]),
        "total_tokens_per_second": summary([n_requests * (n_in + n_out) / wall for wall in walls]),
        "seconds": summary(walls, 3),
        "median_seconds_to_first_token": summary(firsts, 4),
        "preemptions": after.n_preemptions - before.n_preemptions,
        "steps_per_run": round((after.step - before.step) / settings.repeat),
        "outside_native": outside_native(workload.native_seconds - native, sum(walls)),
        "foreign": foreign,
    }
