"""Many short requests to one server: what it keeps of each, in memory, files and threads."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import psutil

from kvasir.bench.fingerprint import Meter
from kvasir.bench.http_client import Target, complete
from kvasir.bench.report import report
from kvasir.bench.start import HOST, NAME, flags, running_server
from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import KvasirError

N_CLIENTS = 16
N_SAMPLES = 64
WARM_SHARE = 0.25
"""Of the requests: those that fill caches and buffers up to their bounds are not counted."""
MAX_PROMPT = 24
N_IDS = 50
"""Prompts are made of ids below it, which every vocabulary has."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Of both processes together, after ``n_requests``."""

    n_requests: int
    seconds: float
    rss: int
    n_files: int
    n_threads: int


def measure_soak(options: EngineOptions, n_requests: int) -> dict[str, Any]:
    """The report of ``n_requests`` of one token each, ``N_CLIENTS`` at a time.

    ``rss_bytes_per_request`` and ``rss_mb_per_hour`` are slopes of the resident bytes of both
    processes, by least squares over the last three quarters; ``n_files`` and ``n_threads`` the
    least and most that were open then. Raises KvasirError when a request fails.
    """
    loaded = load_model(options.model, options.mmproj)
    words = flags(options)
    with Meter() as meter, running_server(str(loaded.source.origin), words) as server:
        server.first_token()
        api = psutil.Process(server.process.pid)
        processes = (api, *api.children())
        samples = asyncio.run(_soak(Target(HOST, server.port, "/v1"), processes, n_requests))
    engine = {"model": loaded.source.name, "options": words}
    return report("soak", engine, summarize(samples) | {"foreign": meter.foreign})


def summarize(samples: Sequence[Sample]) -> dict[str, Any]:
    """Slopes and ranges after the warm-up."""
    n_requests = samples[-1].n_requests
    kept = [sample for sample in samples if sample.n_requests >= WARM_SHARE * n_requests]
    rss = [float(sample.rss) for sample in kept]
    per_request = _slope([float(sample.n_requests) for sample in kept], rss)
    per_second = _slope([sample.seconds for sample in kept], rss)
    return {
        "n_requests": n_requests,
        "seconds": round(samples[-1].seconds, 2),
        "rss_bytes_per_request": round(per_request, 3),
        "rss_mb_per_hour": round(per_second * 3600 / 1e6, 3),
        "n_files": _range([sample.n_files for sample in kept]),
        "n_threads": _range([sample.n_threads for sample in kept]),
        "samples": [asdict(sample) for sample in samples],
    }


async def _soak(
    target: Target, processes: Sequence[psutil.Process], n_requests: int
) -> list[Sample]:
    start, done = time.perf_counter(), 0
    samples = [_sample(processes, 0, 0.0)]
    generator = random.Random(0)
    while done < n_requests:
        n = min(max(1, n_requests // N_SAMPLES), n_requests - done)
        await _requests(target, generator, n)
        done += n
        samples.append(_sample(processes, done, time.perf_counter() - start))
    return samples


async def _requests(target: Target, generator: random.Random, n: int) -> None:
    left = iter(range(n))

    async def client() -> None:
        for _ in left:
            prompt = generator.choices(range(N_IDS), k=generator.randint(1, MAX_PROMPT))
            body = {"model": NAME, "prompt": prompt, "max_tokens": 1, "stream": True}
            answer = await complete(target, body)
            if answer.error:
                raise KvasirError(f"a request failed: {answer.error}")

    await asyncio.gather(*(client() for _ in range(N_CLIENTS)))


def _sample(processes: Sequence[psutil.Process], n_requests: int, seconds: float) -> Sample:
    return Sample(
        n_requests,
        round(seconds, 3),
        sum(process.memory_info().rss for process in processes),
        sum(process.num_fds() for process in processes),
        sum(process.num_threads() for process in processes),
    )


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    if len(x) < 2:
        return 0.0
    return float(np.polyfit(x, y, 1)[0])


def _range(values: Sequence[int]) -> list[int]:
    return [min(values), max(values)]
