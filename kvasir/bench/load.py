"""Load on a running server over HTTP: what clients see, at a given rate or all at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kvasir.bench.cputime import ServerProcesses
from kvasir.bench.datasets import LoadRequest, read_dataset
from kvasir.bench.http_client import Target, TimedAnswer, complete, get
from kvasir.bench.workload import SEED
from kvasir.core.errors import ConfigError, KvasirError

MAX_TOKEN_ID = 10_000
"""Prompts are ids below this, so that one trace fits every vocabulary worth serving."""
CHATS = "/chat/completions"
ROUTES = ("/completions", CHATS)
"""Behind /v1."""


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
    dataset_name: str = "random"
    """Of ``DATASETS``."""
    dataset_path: Path | None = None
    fixed_len: int | None = None
    """Output tokens of each request of a file; None: what the file says."""
    max_concurrency: int | None = None
    """Requests that are answered at a time; None: any number."""
    endpoint: str = "/v1/completions"
    """Or /v1/chat/completions."""
    seed: int = SEED
    ignore_eos: bool = True


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
    bodies = [_body(model, each, settings) for each in asked(settings)]
    route = route_of(settings.endpoint)
    await complete(target, {**bodies[0], "max_tokens": 2}, route)
    turns = asyncio.Semaphore(settings.max_concurrency or len(bodies))
    before = server.times() if server else None
    start = time.perf_counter()
    sent = [
        asyncio.create_task(_at(start + delay, turns, target, body, route))
        for delay, body in zip(delays(settings), bodies, strict=True)
    ]
    answers = await asyncio.gather(*sent)
    found = {"model": model, **summarize(answers, settings)}
    if server and before:
        found["cpu"] = server.times().since(before).report(found["output_tokens"])
    return found


async def _at(
    when: float, turns: asyncio.Semaphore, target: Target, body: dict[str, Any], route: str
) -> TimedAnswer:
    await asyncio.sleep(max(0.0, when - time.perf_counter()))
    async with turns:
        return await complete(target, body, route)


def route_of(endpoint: str) -> str:
    """Behind /v1. Raises ConfigError for one whose streams are not read here."""
    found = "/" + endpoint.strip("/").removeprefix("v1/")
    if found not in ROUTES:
        raise ConfigError(f"--endpoint is {endpoint!r}: use one of /v1{', /v1'.join(ROUTES)}")
    return found


def asked(settings: LoadSettings) -> list[LoadRequest]:
    """The requests, the same for the same settings. Raises ConfigError, OSError."""
    if settings.dataset_name == "random":
        return [LoadRequest(ids, settings.output_len) for ids in prompts(settings)]
    where, length = settings.dataset_path, settings.fixed_len
    return read_dataset(settings.dataset_name, where, settings.num_prompts, length, settings.seed)


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


def _body(model: str, request: LoadRequest, settings: LoadSettings) -> dict[str, Any]:
    """Raises ConfigError for ids in a chat, which takes texts."""
    said: dict[str, Any] = {"prompt": request.prompt}
    if route_of(settings.endpoint) == CHATS:
        if not isinstance(request.prompt, str):
            raise ConfigError("random prompts are ids: use --endpoint /v1/completions")
        said = {"messages": [{"role": "user", "content": request.prompt}]}
    return {
        "model": model,
        **said,
        "max_tokens": request.output_len,
        "temperature": 0,
        "ignore_eos": settings.ignore_eos,
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
        "max_concurrency": settings.max_concurrency,
        "input_tokens": sum(answer.n_prompt for answer in good),
        "output_tokens": n_output,
        "output_tokens_per_second": round(n_output / wall, 2),
        "seconds_to_first_token": percentiles([answer.tokens[0] for answer in good]),
        "seconds_per_output_token": percentiles(
            [(x.tokens[-1] - x.tokens[0]) / (len(x.tokens) - 1) for x in good if len(x.tokens) > 1]
        ),
        "seconds_between_tokens": percentiles(gaps),
        "seconds_per_request": percentiles([answer.tokens[-1] for answer in good]),
    }


def percentiles(values: Sequence[float]) -> dict[str, float] | None:
    """Mean, p50, p90, p99 and max; None without values."""
    if not values:
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    mean = sum(values) / len(values)
    found = {"mean": mean, "p50": p50, "p90": p90, "p99": p99, "max": max(values)}
    return {name: round(value, 5) for name, value in found.items()}
