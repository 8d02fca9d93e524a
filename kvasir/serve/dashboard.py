"""The figures of a dashboard: made from copies that the API process has, at most twice a second,
once for all who watch, and only while somebody does.

What nobody can make afterwards is sampled every few seconds whether somebody watches or not: the
totals that windows of latencies and the lines of the last hour are differences of. An hour of them
is less than a megabyte.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from kvasir.core.errors import KvasirError
from kvasir.core.messages import EngineStats
from kvasir.core.request import PRIORITY_CLASSES
from kvasir.serve import metric_table as table
from kvasir.serve.answers.page import DashboardCore, LatencyWindow, Quantiles, StepShares
from kvasir.serve.metric_table import MetricInfo
from kvasir.serve.metrics import Metrics
from kvasir.timing.records import Holding, StepRecord

SAMPLE_SECONDS = 10.0
MAX_SAMPLES = 361
"""An hour, and where its first interval begins."""
SNAPSHOT_SECONDS = 0.5
"""Between two snapshots."""
STALE_SECONDS = 2.0
"""Since the engine said what its choices hold: nobody has watched for a while."""
HEAR_SECONDS = 0.3
"""That who begins to watch waits for that; an engine answers between two steps."""
RATE_SECONDS = 4.0
"""That a rate of now is taken over."""
SHARE_SECONDS = 2.0
MAX_STEPS = 1024
"""Steps that are looked at for their shares."""
WINDOWS = (60, 300, 3600)
"""Seconds."""


class Tick(NamedTuple):
    """Totals at a time of the server's monotonic clock."""

    at: float
    output_tokens: int
    prompt_tokens: int


class Sampled(NamedTuple):
    """Totals and levels; totals are told as differences of two."""

    tick: Tick
    running: int
    waiting: int
    blocks_used: int
    ttft: tuple[int, ...]
    """Of the buckets of its histogram, all classes together."""
    itl: tuple[int, ...]


class Monitor:
    """What is remembered of one model between two snapshots of it. Lives in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.samples: deque[Sampled] = deque(maxlen=MAX_SAMPLES)
        self.holdings: tuple[Holding, ...] = ()
        """What the engine last said that running choices hold."""
        self._heard = float("-inf")
        """When it said so."""
        self._told: DashboardCore | None = None
        self._made = float("-inf")
        self._bodies: dict[bytes, bytes] = {}
        self._ticks: deque[Tick] = deque()
        self._asking: asyncio.Task[None] | None = None

    @property
    def fresh(self) -> DashboardCore | None:
        """The last snapshot, until another is due."""
        return self._told if self.clock() - self._made < SNAPSHOT_SECONDS else None

    def tell(self, told: DashboardCore) -> None:
        """A snapshot, made just now."""
        self._told, self._made = told, self.clock()
        self._bodies = {}

    def body(self, owner: bytes, make: Callable[[], bytes]) -> bytes:
        """What those who have one key are sent of this snapshot, made once."""
        if owner not in self._bodies:
            self._bodies[owner] = make()
        return self._bodies[owner]

    def rates(self, now: Tick) -> tuple[float, float]:
        """Output and prompt tokens per second of the last seconds: since a snapshot as old as that,
        or the newest sample where nobody watched."""
        while self._ticks and now.at - self._ticks[0].at > RATE_SECONDS:
            self._ticks.popleft()
        last = self.samples[-1].tick if self.samples else now
        before = self._ticks[0] if self._ticks else last
        self._ticks.append(now)
        return rates(before, now)

    def before(self, now: float, seconds: float) -> Sampled | None:
        """The newest sample that is at least ``seconds`` old; the oldest where none is."""
        for sample in reversed(self.samples):
            if sample.tick.at <= now - seconds:
                return sample
        return self.samples[0] if self.samples else None

    def ask(self, holdings: Callable[[], Awaitable[tuple[Holding, ...]]]) -> None:
        """The engine, one question at a time, what its choices hold. Who watches does not wait for
        the answer: the next snapshot has it."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._take(holdings))

    async def _take(self, holdings: Callable[[], Awaitable[tuple[Holding, ...]]]) -> None:
        try:
            self.holdings = await holdings()
        except KvasirError:  # no engine, nothing held
            self.holdings = ()
        self._heard = self.clock()

    async def hear(self) -> None:
        """Returns at once, or with the answer where the last one is of long ago, or after
        HEAR_SECONDS: the next snapshot has it then."""
        if self._asking is not None and self.clock() - self._heard > STALE_SECONDS:
            await asyncio.wait((self._asking,), timeout=HEAR_SECONDS)


def sample(now: float, stats: EngineStats, metrics: Metrics, model: str) -> Sampled:
    return Sampled(
        tick(now, stats),
        stats.n_running,
        stats.n_waiting,
        used(stats),
        counts(metrics, model, table.TTFT),
        counts(metrics, model, table.ITL),
    )


async def record(monitor: Monitor, take: Callable[[], Sampled]) -> None:
    """Samples, until it is cancelled."""
    while True:
        monitor.samples.append(take())
        await asyncio.sleep(SAMPLE_SECONDS)


def tick(now: float, stats: EngineStats) -> Tick:
    return Tick(now, stats.output_tokens, stats.prompt_tokens)


def used(stats: EngineStats) -> int:
    """Blocks that somebody holds."""
    return stats.blocks_total - stats.blocks_free - stats.blocks_cached


def counts(metrics: Metrics, model: str, info: MetricInfo) -> tuple[int, ...]:
    """Of the buckets of a histogram by class, all classes together."""
    found = [metrics.histogram(info, model, name).counts for name in PRIORITY_CLASSES]
    return tuple(map(sum, zip(*found, strict=True)))


def rates(before: Tick, now: Tick) -> tuple[float, float]:
    """Tokens per second between the two: of outputs, and of prompts."""
    seconds = now.at - before.at
    if seconds <= 0:
        return 0.0, 0.0
    outputs = now.output_tokens - before.output_tokens
    prompts = now.prompt_tokens - before.prompt_tokens
    return round(max(0.0, outputs / seconds), 3), round(max(0.0, prompts / seconds), 3)


def window(before: Sampled | None, now: Sampled) -> LatencyWindow:
    """Latencies of what ended between the two, or ever where there is no sample."""
    seconds = 0.0 if before is None else now.tick.at - before.tick.at
    return {
        "seconds": round(seconds, 1),
        "ttft": _quantiles(table.TTFT, before and before.ttft, now.ttft),
        "itl": _quantiles(table.ITL, before and before.itl, now.itl),
    }


def _quantiles(info: MetricInfo, old: Sequence[int] | None, new: Sequence[int]) -> Quantiles:
    found = list(new) if old is None else [y - x for x, y in zip(old, new, strict=True)]
    return {
        "count": sum(found),
        "p50": quantile(info.bounds, found, 0.5),
        "p90": quantile(info.bounds, found, 0.9),
        "p99": quantile(info.bounds, found, 0.99),
    }


def quantile(bounds: Sequence[float], found: Sequence[int], share: float) -> float | None:
    """As Prometheus' histogram_quantile: values are evenly spread in a bucket, and those above all
    bounds count as the last one. None where there are none."""
    total = sum(found)
    if not total:
        return None
    rank, below = share * total, 0
    for i, n in enumerate(found[:-1]):
        if n and below + n >= rank:
            low = bounds[i - 1] if i else 0.0
            return round(low + (bounds[i] - low) * (rank - below) / n, 6)
        below += n
    return bounds[-1]


def shares(steps: Sequence[StepRecord], now: float) -> StepShares:
    """Where the time of the steps of the last ``SHARE_SECONDS`` went, each step's divided by its
    tokens. ``steps`` are the newest, ``now`` their clock's time."""
    lately = [step for step in steps if step.at >= now - SHARE_SECONDS]
    seconds = SHARE_SECONDS if len(lately) < len(steps) else 0.0
    seconds = seconds or min(SHARE_SECONDS, now - lately[0].at if lately else SHARE_SECONDS)
    parts = [0.0, 0.0, 0.0, 0.0]
    for step in lately:
        kinds = _tokens(step)
        one = step.seconds / (sum(kinds) or 1)
        parts = [x + one * n for x, n in zip(parts, kinds, strict=True)]
    decode, prefill, draft, forced = (round(x, 6) for x in parts)
    return {
        "seconds": round(seconds, 3),
        "steps": len(lately),
        "busy": round(min(1.0, sum(parts) / max(seconds, 1e-9)), 4),
        "decode": decode,
        "prefill": prefill,
        "draft": draft,
        "forced": forced,
    }


def _tokens(step: StepRecord) -> tuple[int, int, int, int]:
    """Of decodes, prompts, drafts, and rows of forced tokens."""
    return (
        len(step.decodes),
        sum([n for _, _, n in step.chunks]),
        sum([n for _, n in step.drafts]),
        sum([n for _, n in step.forced]),
    )
