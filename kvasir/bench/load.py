"""Load on a running server over HTTP: what clients see, at a given rate or all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvasir.bench.cputime import ServerProcesses
from kvasir.bench.http_client import Target, TimedAnswer, complete, get
from kvasir.bench.workload import SEED
from kvasir.core.errors import KvasirError

MAX_TOKEN_ID = 10_000
"""Prompts are ids below this, so that one trace fits every vocabulary worth serving."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    num_prompts: int = 64
    input_len: int = 128
    output_len: int = 128
    prefix_len: int = 0
    """Tokens at the start of every prompt that all share; part of ``input_len``."""
    request_rate: float = 0.0
    """Requests per second, exponential gaps; 0 sends all at once."""
    model: str | None = None
    """None: the first that the server lists."""


def measure_load(
    target: Target, settings: LoadSettings, server: ServerProcesses | None = None
) -> dict[str, Any]:
    """Rates in tokens per second, times in seconds; CPU time of ``server``, where it is known.

    Raises KvasirError when every request fails.
    """
    return asyncio.run(_measure(target, settings, server))


async def _measure(
    target: Target, settings: LoadSettings, server: ServerProcesses | None
) -> dict[str, Any]:
    model = settings.model or str((await get(target, "/models"))["data"][0]["id"])
    bodies = [_body(model, prompt, settings.output_len) for prompt in prompts(settings)]
    await complete(target, {**bodies[0], "max_tokens": 2})
    before = server.times() if server else None
    start = time.perf_counter()
    sent = [
        asyncio.create_task(_at(start + delay, target, body))
        for delay, body in zip(delays(settings), bodies, strict=True)
    ]
    answers = await asyncio.gather(*sent)
    found = {"model": model, **summarize(answers, settings)}
    if server and before:
        found["cpu"] = server.times().since(before).report(found["output_tokens"])
    return found


async def _at(when: float, target: Target, body: dict[str, Any]) -> TimedAnswer:
    await asyncio.sleep(max(0.0, when - time.perf_counter()))
    return await complete(target, body)


def prompts(settings: LoadSettings) -> list[list[int]]:
    """Token ids, the same for the same settings."""
    generator = np.random.default_rng((SEED, settings.input_len, settings.prefix_len))
    shared = generator.integers(0, MAX_TOKEN_ID, settings.prefix_len).tolist()
    n_own = settings.input_len - settings.prefix_len
    own = generator.integers(0, MAX_TOKEN_ID, (settings.num_prompts, n_own)).tolist()
    return [shared + ids for ids in own]


def delays(settings: LoadSettings) -> list[float]:
    """Seconds after the start at which each request is sent."""
    if settings.request_rate == 0:
        return [0.0] * settings.num_prompts
    generator = np.random.default_rng((SEED, settings.num_prompts))
    gaps = generator.exponential(1 / settings.request_rate, settings.num_prompts)
    return [float(when) for when in np.cumsum(gaps) - gaps[0]]


def _body(model: str, prompt: list[int], n_output: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": prompt,
        "max_tokens": n_output,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }


def summarize(answers: Sequence[TimedAnswer], settings: LoadSettings) -> dict[str, Any]:
    """What the clients saw. Failed requests are counted and their first error is shown."""
    good = [answer for answer in answers if not answer.error and answer.tokens]
    failed = [answer.error or "no tokens" for answer in answers if answer not in good]
    if not good:
        raise KvasirError(f"all {len(answers)} requests failed, the first with: {failed[0]}")
    start = min(answer.started for answer in answers)
    wall = max(answer.started + answer.tokens[-1] for answer in good) - start
    n_output = sum(len(answer.tokens) for answer in good)
    gaps = [b - a for x in good for a, b in zip(x.tokens, x.tokens[1:], strict=False)]
    return {
        "num_prompts": len(answers),
        "input_len": settings.input_len,
        "output_len": settings.output_len,
        "request_rate": settings.request_rate,
        "failed": len(failed),
        "first_error": failed[0] if failed else None,
        "seconds": round(wall, 3),
        "output_tokens": n_output,
        "output_tokens_per_second": round(n_output / wall, 2),
        "seconds_to_first_token": percentiles([answer.tokens[0] for answer in good]),
        "seconds_between_tokens": percentiles(gaps),
        "seconds_per_request": percentiles([answer.tokens[-1] for answer in good]),
    }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """p50, p90, p99 and max; None without values."""
    if not values:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    found = {"p50": p50, "p90": p90, "p99": p99, "max": max(values)}
    return {name: round(value, 5) for name, value in found.items()}
