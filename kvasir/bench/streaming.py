"""What streaming to many clients costs the engine, against the same work offline."""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from typing import Any

from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.cputime import CpuTimes, processes_of
from kvasir.bench.fingerprint import Meter
from kvasir.bench.http_client import Target
from kvasir.bench.load import LoadSettings, measure_load
from kvasir.bench.planned import opened, planned_executor
from kvasir.bench.report import report, summary
from kvasir.bench.start import HOST, NAME, flags, running_server
from kvasir.bench.workload import Workload
from kvasir.config.options import EngineOptions
from kvasir.core.errors import KvasirError
from kvasir.engine.build import build_engine


@dataclass(frozen=True, slots=True)
class StreamingSettings:
    num_prompts: int = 64
    input_len: int = 128
    output_len: int = 128
    repeat: int = 3

    @property
    def n_output(self) -> int:
        return self.num_prompts * self.output_len


@dataclass(frozen=True, slots=True)
class StreamingRun:
    """One way through the whole workload."""

    wall: float
    cpu: CpuTimes
    foreign: float


def measure_streaming(options: EngineOptions, settings: StreamingSettings) -> dict[str, Any]:
    """The report of runs in turns, offline and over HTTP, with equal numbers of tokens.

    Raises KvasirError when a request or the server fails.
    """
    loaded = opened(options)
    model, words = str(loaded.source.origin), flags(options)
    offline, served = [], []
    for key in range(1, settings.repeat + 1):
        offline.append(_offline(options, settings, key))
        served.append(_served(model, words, settings))
    engine = {"model": loaded.source.name, "weights_hash": loaded.source.content_hash}
    results = compare(offline, served, settings.n_output, os.cpu_count() or 1)
    ceilings = measure_ceilings(planned_executor(options).threads)
    return report("streaming", {**engine, "options": words}, results, ceilings=ceilings)


def _offline(options: EngineOptions, settings: StreamingSettings, key: int) -> StreamingRun:
    built = build_engine(options)
    try:
        workload = Workload(built)
        workload.run(2, settings.input_len, 2)
        with Meter() as meter:
            began, start = time.process_time(), time.perf_counter()
            workload.run(settings.num_prompts, settings.input_len, settings.output_len, key)
            wall, busy = time.perf_counter() - start, time.process_time() - began
    finally:
        built.engine.close()
    return StreamingRun(wall, CpuTimes(0.0, 0.0, busy), meter.foreign)


def _served(model: str, words: list[str], settings: StreamingSettings) -> StreamingRun:
    load = LoadSettings(settings.num_prompts, settings.input_len, settings.output_len, model=NAME)
    # The server's CPU time is known to be ours once it has ended: its start is metered too.
    with Meter() as meter, running_server(model, words) as server:
        server.first_token()
        processes = processes_of(server.process.pid)
        if processes is None:
            raise KvasirError("the server has no engine process to look into")
        found = measure_load(Target(HOST, server.port, "/v1"), load, processes)
    if found["failed"]:
        raise KvasirError(f"{found['failed']} requests failed: {found['first_error']}")
    seconds = found["cpu"]["seconds"]
    cpu = CpuTimes(seconds["client"], seconds["api"], seconds["engine"])
    return StreamingRun(found["seconds"], cpu, meter.foreign)


def compare(
    offline: list[StreamingRun], served: list[StreamingRun], n_output: int, n_cpus: int
) -> dict[str, Any]:
    """Losses are shares, medians over the pairs of runs.

    ``lost``: of the rate, as the clients see it. ``lost_beside_client``: when the load's own CPU
    seconds, spread over the CPUs, are taken from the time: what remains for a load that comes from
    another machine. ``lost_by_engine``: of tokens for each CPU second of the engine process,
    whatever others do: waits that spin count as work. ``foreign``: of the offline runs, then of the
    served ones with the start of their server.
    """

    def lost(seconds: list[float]) -> float:
        pairs = zip(offline, seconds, strict=True)
        return round(statistics.median(1 - before.wall / after for before, after in pairs), 4)

    efficiency = [
        1 - before.cpu.engine / after.cpu.engine
        for before, after in zip(offline, served, strict=True)
    ]
    return {
        "output_tokens": n_output,
        "offline_tokens_per_second": summary([n_output / run.wall for run in offline]),
        "served_tokens_per_second": summary([n_output / run.wall for run in served]),
        "offline_cpu": [run.cpu.report(n_output) for run in offline],
        "served_cpu": [run.cpu.report(n_output) for run in served],
        "lost": lost([run.wall for run in served]),
        "lost_beside_client": lost([run.wall - run.cpu.client / n_cpus for run in served]),
        "lost_by_engine": round(statistics.median(efficiency), 4),
        "foreign": [run.foreign for run in (*offline, *served)],
    }
