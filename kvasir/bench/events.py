"""What a streamed event costs the API process, in each dialect, and a server that only sends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.cputime import exact_cpu_seconds
from kvasir.bench.dialects import DIALECTS, Spoken, listen
from kvasir.bench.fingerprint import Meter
from kvasir.bench.http_client import Target
from kvasir.bench.planned import planned_executor
from kvasir.bench.report import report, summary
from kvasir.bench.start import (
    HOST,
    NAME,
    RunningServer,
    flags,
    free_port,
    running,
    running_server,
)
from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import KvasirError

BEGUN = 4
"""Events after which a stream counts as begun."""


@dataclass(frozen=True, slots=True)
class EventsSettings:
    streams: int = 64
    output_len: int = 160
    repeat: int = 3


@dataclass(slots=True)
class _EventWindow:
    """From when every stream has begun until the first quarter of them has ended."""

    pid: int
    n_streams: int
    n_events: int = 0
    n_ended: int = 0
    begun: set[int] = field(default_factory=set)
    counts: dict[int, int] = field(default_factory=dict)
    marks: list[tuple[float, int]] = field(default_factory=list)
    """CPU seconds and events at both ends."""

    def heard(self, stream: int, n: int) -> None:
        self.n_events += n
        count = self.counts[stream] = self.counts.get(stream, 0) + n
        if count >= BEGUN and stream not in self.begun:
            self.begun.add(stream)
            if len(self.begun) == self.n_streams:
                self._mark()

    def ended(self) -> None:
        self.n_ended += 1
        if self.n_ended == max(1, self.n_streams // 4):
            self._mark()

    def _mark(self) -> None:
        self.marks.append((exact_cpu_seconds(self.pid), self.n_events))

    def microseconds(self) -> float:
        """Of CPU, for each event. Raises KvasirError when streams ended before all had begun."""
        if len(self.marks) < 2 or self.marks[0][1] >= self.marks[1][1]:
            raise KvasirError("streams ended before all had begun: ask for more tokens")
        (before, n_before), (after, n_after) = self.marks
        return 1e6 * (after - before) / (n_after - n_before)


def measure_events(options: EngineOptions, settings: EventsSettings) -> dict[str, Any]:
    """The report of ``repeat`` turns of all dialects on one server.

    Microseconds are of CPU, all threads, for each event that a client got. Raises KvasirError when
    a request or the server fails.
    """
    loaded = load_model(options.model, options.mmproj)
    words = flags(options)
    found: dict[str, list[float]] = {name: [] for name in DIALECTS}
    plain: list[float] = []
    with (
        Meter() as meter,
        running_server(str(loaded.source.origin), words) as server,
        _plain() as bare,
    ):
        server.first_token()
        bare.wait()
        for _ in range(settings.repeat):
            for name, spoken in DIALECTS.items():
                found[name].append(_microseconds(server, spoken, settings))
            plain.append(_microseconds(bare, DIALECTS["chat"], settings))
    results = {
        "microseconds": compare(found),
        "plain_asgi": summary(plain),
        "chat_over_plain_asgi": round(median(found["chat"]) / median(plain), 2),
        "foreign": meter.foreign,
    }
    engine = {"model": loaded.source.name, "weights_hash": loaded.source.content_hash}
    ceilings = measure_ceilings(planned_executor(options).threads)
    return report("events", {**engine, "options": words}, results, ceilings=ceilings)


@contextmanager
def _plain() -> Iterator[RunningServer]:
    """A server whose events are made already."""
    port = free_port()
    with running((sys.executable, "-m", "kvasir.bench.plain_asgi", str(port)), port) as server:
        yield server


def _microseconds(server: RunningServer, spoken: Spoken, settings: EventsSettings) -> float:
    window = _EventWindow(server.process.pid, settings.streams)
    asyncio.run(_streams(Target(HOST, server.port, ""), spoken, settings, window))
    return window.microseconds()


def compare(found: dict[str, list[float]]) -> dict[str, Any]:
    """By dialect; ``over_chat``: the median over that of chat completions."""
    sums = {name: summary(values) for name, values in found.items()}
    chat = sums["chat"]["median"]
    return {
        name: {**values, "over_chat": round(values["median"] / chat, 2)}
        for name, values in sums.items()
    }


async def _streams(
    target: Target, spoken: Spoken, settings: EventsSettings, window: _EventWindow
) -> None:
    async def one(stream: int) -> None:
        body = spoken.body(NAME, prompt(stream), settings.output_len)
        await listen(target, spoken, body, lambda n: window.heard(stream, n))
        window.ended()

    await asyncio.gather(*(one(stream) for stream in range(settings.streams)))


def prompt(number: int) -> str:
    """What a model has much to say to; no two are alike."""
    first = 7 * number
    numbers = ", ".join(str(first + i) for i in range(4))
    return f"Write down all numbers from {first} on, one after another: {numbers},"
