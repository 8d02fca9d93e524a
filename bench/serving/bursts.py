"""A server beyond its capacity: 1,000 streams at once, and bursts of 20 times its usual rate.

    python -m bench.serving.bursts --output bench/results/bursts-2cores.json

First a closed loop of 64 clients finds what the server gives at most: its capacity. Then 1,000
streams are asked for at once. Then requests come at random at half of the capacity, for five
seconds at 20 times that rate, and at half of the capacity again. All the while ``/health`` is asked
over a connection of its own. The load runs on the same machine, and takes its CPU time from the
server.

``goodput`` is the rate of the events that clients got over the capacity: of the 1,000 streams, and
of all requests between the beginning of the burst and the answer to the last of it. Then
another server, whose queue has room for a fifth of the requests of such a burst, refuses the others
(429): the truth of a refusal is when the queue had room again, as ``/metrics`` says, which is asked
ten times a second; ``Retry-After`` has whole seconds, so that is not held against it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write
from kvasir.bench.start import HOST, NAME, running_server
from kvasir.weights.default import default_model

PROGRAM = "python -m bench.serving.bursts"
N_INPUT, N_OUTPUT = 32, 32
IDS = range(1000, 10_000)
MARK = b'"choices":['
END = b"0\r\n\r\n"
N_CLIENTS = 64
CLOSED_SECONDS = 15.0
USUAL_SECONDS, BURST_SECONDS, AFTER_SECONDS = 5.0, 5.0, 5.0
USUAL_SHARE = 0.5
"""Of the capacity."""
FACTOR = 20
HEALTH_EVERY, METRICS_EVERY = 0.02, 0.1


@dataclass
class Answer:
    """Times are of ``time.perf_counter``."""

    sent: float
    status: int = 0
    """0: there was none."""
    retry_after: int | None = None
    events: list[float] = field(default_factory=list)
    """When each came."""
    ended: float = 0.0
    error: str = ""

    @property
    def is_whole(self) -> bool:
        return self.status == 200 and not self.error


class Load:
    """Requests of one kind, all with prompts of their own."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._random = random.Random(13)

    async def ask(self) -> Answer:
        prompt = self._random.choices(IDS, k=N_INPUT)
        fixed = {"temperature": 0, "ignore_eos": True, "stream": True}
        body = {"model": NAME, "prompt": prompt, "max_tokens": N_OUTPUT, **fixed}
        answer = Answer(time.perf_counter())
        try:
            await self._exchange(json.dumps(body).encode(), answer)
        except OSError as error:
            answer.error = f"{type(error).__name__}: {error}"
        answer.ended = time.perf_counter()
        return answer

    async def _exchange(self, body: bytes, answer: Answer) -> None:
        reader, writer = await asyncio.open_connection(HOST, self._port)
        try:
            writer.write(_head("POST", "/v1/completions", len(body)) + body)
            await _read(reader, answer)
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader, answer: Answer) -> None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as ended:
        answer.error = f"no answer, but {ended.partial[:60]!r}"
        return
    answer.status = int(head.split()[1])
    told = re.search(rb"\r\nretry-after: (\d+)", head)
    answer.retry_after = int(told[1]) if told else None
    rest = b""
    while data := await reader.read(2**16):
        found = rest + data
        answer.events += [time.perf_counter()] * (found.count(MARK) - rest.count(MARK))
        if b'"error":' in found and answer.status == 200:
            answer.error = found[-200:].decode(errors="replace")
        if answer.status == 200 and found.endswith(END):
            return
        rest = found[-len(MARK) :]
    if answer.status == 200:
        answer.error = "the stream ended early"


def _head(method: str, path: str, length: int) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {HOST}", "Connection: close"]
    typed = ["Content-Type: application/json", f"Content-Length: {length}"] if length else []
    return "\r\n".join([*lines, *typed, "", ""]).encode()


async def get(port: int, path: str) -> bytes:
    """The body; raises OSError, and KeyError when the status is another than 200."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(_head("GET", path, 0))
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    finally:
        writer.close()
    if b" 200 " not in head[:20]:
        raise KeyError(f"{path}: {head[:60]!r}")
    return body


@dataclass
class Watch:
    """What is asked all the while."""

    port: int
    health: list[float] = field(default_factory=list)
    """Seconds of each answer."""
    failures: list[str] = field(default_factory=list)
    waiting: list[tuple[float, float]] = field(default_factory=list)
    """When, and how many choices waited."""

    async def run(self) -> None:
        await asyncio.gather(self._ask_health(), self._ask_metrics())

    async def _ask_health(self) -> None:
        while True:
            began = time.perf_counter()
            try:
                await get(self.port, "/health")
                self.health.append(time.perf_counter() - began)
            except (OSError, KeyError) as error:
                self.failures.append(str(error))
            await asyncio.sleep(max(0.0, began + HEALTH_EVERY - time.perf_counter()))

    async def _ask_metrics(self) -> None:
        while True:
            began = time.perf_counter()
            text = (await get(self.port, "/metrics")).decode()
            self.waiting.append((began, sample(text, "kvasir_num_requests_waiting")))
            await asyncio.sleep(METRICS_EVERY)


def sample(text: str, name: str) -> float:
    """The sum of the series called ``name``."""
    return sum(float(x) for x in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def lag(text: str) -> dict[float, float]:
    """How often the event loop was at most so many seconds late."""
    found = re.findall(
        r'^kvasir_event_loop_lag_seconds_bucket{le="(\S+)"} (\S+)$', text, re.MULTILINE
    )
    return {float(bound): float(n) for bound, n in found}


def late(before: dict[float, float], after: dict[float, float], share: float) -> float:
    """Seconds within which ``share`` of the looks between lie: the bound of a bucket."""
    counts = {bound: after[bound] - before[bound] for bound in sorted(after)}
    total = counts[max(counts)]
    return next(bound for bound, n in counts.items() if n >= share * total)


async def closed(load: Load, seconds: float) -> float:
    """Events a second of N_CLIENTS that ask again as soon as they are answered, in the middle
    half of the time."""
    start = time.perf_counter()
    answers: list[Answer] = []

    async def client() -> None:
        while time.perf_counter() < start + seconds:
            answers.append(await load.ask())

    await asyncio.gather(*(client() for _ in range(N_CLIENTS)))
    return rate(answers, start + seconds / 4, start + 3 * seconds / 4)


def rate(answers: Sequence[Answer], start: float, end: float) -> float:
    """Events a second between two moments, of the answers that came whole."""
    times = (when for answer in answers if answer.is_whole for when in answer.events)
    return sum(start <= when < end for when in times) / (end - start)


async def at_once(load: Load, n: int) -> list[Answer]:
    return list(await asyncio.gather(*(load.ask() for _ in range(n))))


async def arriving(
    ask: Callable[[], Awaitable[Answer]], phases: Sequence[tuple[float, float]]
) -> list[Answer]:
    """Requests at random (Poisson) at the rate of each phase, for its seconds."""
    gaps, start, asked = random.Random(20), time.perf_counter(), []
    due, end = start, start
    for per_second, seconds in phases:
        due, end = end, end + seconds
        while (due := due + gaps.expovariate(per_second)) < end:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            asked.append(asyncio.ensure_future(ask()))
    return list(await asyncio.gather(*asked))


def refusals(
    answers: Sequence[Answer], waiting: Sequence[tuple[float, float]], full: float
) -> dict[str, Any]:
    """Of every refusal: whether ``Retry-After`` lies within a factor of two of when fewer than
    ``full`` choices waited, in whole seconds and at least one."""
    room = [when for when, n in waiting if n < full]
    ratios = []
    for answer in answers:
        if answer.status == 429 and answer.retry_after is not None:
            later = [when for when in room if when >= answer.ended]
            truth = max(1.0, (later[0] if later else room[-1]) - answer.sent)
            ratios.append(answer.retry_after / truth)
    within = [0.5 <= ratio <= 2 for ratio in ratios]
    return {
        "n": len(ratios),
        "within_2x": round(sum(within) / len(within), 4) if within else None,
        "least": round(min(ratios), 2) if ratios else None,
        "most": round(max(ratios), 2) if ratios else None,
    }


def told(answers: Sequence[Answer]) -> dict[str, Any]:
    """Answers by status, and what went wrong in those that began."""
    errors = Counter(answer.error for answer in answers if answer.error)
    return {
        "requests": len(answers),
        "statuses": dict(sorted(Counter(str(x.status) for x in answers).items())),
        "errors": dict(errors.most_common(5)),
    }


async def measure(port: int, n_streams: int) -> dict[str, Any]:
    load, watch = Load(port), Watch(port)
    await at_once(load, N_CLIENTS)
    watching = asyncio.create_task(watch.run())
    before = lag((await get(port, "/metrics")).decode())
    capacity = await closed(load, CLOSED_SECONDS)
    began = time.perf_counter()
    many = await at_once(load, n_streams)
    all_at_once = rate(many, began, max(x.ended for x in many)) / capacity
    usual = USUAL_SHARE * capacity / N_OUTPUT
    phases = ((usual, USUAL_SECONDS), (FACTOR * usual, BURST_SECONDS), (usual, AFTER_SECONDS))
    began = time.perf_counter() + USUAL_SECONDS
    answers = await arriving(load.ask, phases)
    burst = [x for x in answers if began <= x.sent < began + BURST_SECONDS]
    in_burst = rate(answers, began, max(x.ended for x in burst)) / capacity
    after = lag((await get(port, "/metrics")).decode())
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    health = np.percentile(watch.health, (50, 99, 100)) * 1e3
    return {
        "capacity_events_per_second": round(capacity, 1),
        "at_once": {**told(many), "goodput": round(all_at_once, 3)},
        "burst": {
            **told(answers),
            "usual_requests_per_second": round(usual, 1),
            "goodput": round(in_burst, 3),
            "most_waiting": max(n for _, n in watch.waiting),
        },
        "health": {
            "n": len(watch.health),
            "failures": watch.failures[:5],
            "ms": dict(zip(("p50", "p99", "max"), map(lambda x: round(x, 2), health), strict=True)),
        },
        "lag": {
            "looks": after[max(after)] - before[max(after)],
            "seconds_at_most": {f"{q:.1%}": late(before, after, q) for q in (0.5, 0.99, 0.999)},
        },
    }


async def measure_refusals(port: int, usual: float, n_queued: int) -> dict[str, Any]:
    """A burst for a server whose queue has room for ``n_queued``."""
    load, watch = Load(port), Watch(port)
    await at_once(load, N_CLIENTS)
    watching = asyncio.create_task(watch.run())
    answers = await arriving(load.ask, ((FACTOR * usual, BURST_SECONDS),))
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    found = refusals(answers, watch.waiting, n_queued)
    return {**told(answers), "most_queued": n_queued, "retry_after": found}


def run(model: Path, n_streams: int) -> dict[str, Any]:
    words = ["--no-enable-prefix-caching"]
    with running_server(str(model), words) as server:
        server.first_token()
        results = uvloop.run(measure(server.port, n_streams))
    usual = results["burst"]["usual_requests_per_second"]
    n_queued = int(FACTOR * usual * BURST_SECONDS / 5)
    with running_server(str(model), [*words, "--max-queued-requests", str(n_queued)]) as server:
        server.first_token()
        refused = uvloop.run(measure_refusals(server.port, usual, n_queued))
    return {**results, "refusals": refused}


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model, machine = default_model(), fingerprint()
    with Meter() as meter:
        results = run(model, args.streams)
    document = {
        "kind": "bursts",
        "command": command_line(PROGRAM),
        "machine": machine,
        "model": model.name,
        "results": {**results, "foreign": meter.foreign},
    }
    write(document, args.output)


if __name__ == "__main__":
    main()
