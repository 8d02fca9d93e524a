"""Throughput while another process takes part of a CPU, against throughput alone."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kvasir.bench.fingerprint import Meter
from kvasir.bench.report import summary
from kvasir.bench.workload import Workload
from kvasir.core.errors import KvasirError

LIMIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class DisturbedSettings:
    num_prompts: int = 16
    input_len: int = 32
    output_len: int = 128
    share: float = 0.5
    """Of one CPU, that the other process wants."""
    repeat: int = 5


@dataclass(slots=True)
class Burner:
    cpu: list[float] = field(default_factory=list)
    """CPU seconds that it had, once it has ended."""


def measure_disturbed(workload: Workload, settings: DisturbedSettings) -> dict[str, Any]:
    """Runs alone and disturbed in turns. Raises KvasirError when the other process fails.

    ``stolen``: share of all CPUs that the other process had. ``lost``: by which throughput fell.
    ``factor``: lost / stolen; 1 where the lost CPU time alone is missed. ``foreign``: what others
    than both took, per pair of runs.
    """
    _run(workload, settings, 0)
    alone, disturbed, stolen, foreign = [], [], [], []
    for key in range(1, settings.repeat + 1):
        with Meter() as meter:
            alone.append(_run(workload, settings, key))
            with burner(settings.share) as other:
                started = time.perf_counter()
                disturbed.append(_run(workload, settings, key))
                whole = time.perf_counter() - started
        stolen.append(other.cpu[0] / whole / (os.cpu_count() or 1))
        foreign.append(meter.foreign)
    return compare(alone, disturbed, stolen, settings) | {"foreign": foreign}


def compare(
    alone: list[float], disturbed: list[float], stolen: list[float], settings: DisturbedSettings
) -> dict[str, Any]:
    """From seconds of each run and the share stolen in it."""
    n_output = settings.num_prompts * settings.output_len
    lost = [1 - a / b for a, b in zip(alone, disturbed, strict=True)]
    lost_median, stolen_median = statistics.median(lost), statistics.median(stolen)
    return {
        "num_prompts": settings.num_prompts,
        "input_len": settings.input_len,
        "output_len": settings.output_len,
        "alone_tokens_per_second": summary([n_output / seconds for seconds in alone]),
        "disturbed_tokens_per_second": summary([n_output / seconds for seconds in disturbed]),
        "stolen": summary(stolen, 4),
        "lost": summary(lost, 4),
        "factor": round(lost_median / stolen_median, 3) if stolen_median else None,
    }


@contextmanager
def burner(share: float) -> Iterator[Burner]:
    """A process that takes ``share`` of one CPU while the block runs."""
    found = Burner()
    command = [sys.executable, "-m", "kvasir.bench.burner", str(share)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it takes nothing while it starts
        try:
            yield found
        finally:
            said, _ = process.communicate(timeout=LIMIT_SECONDS)
    if process.returncode != 0:
        raise KvasirError(f"the process that disturbs ended with status {process.returncode}")
    found.cpu.append(float(said))


def _run(workload: Workload, settings: DisturbedSettings, key: int) -> float:
    start = time.perf_counter()
    workload.run(settings.num_prompts, settings.input_len, settings.output_len, key)
    return time.perf_counter() - start
