"""The figures of a dashboard: those of ``/metrics``, made once for all, and bounded."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import Any

import pytest

from kvasir.core.messages import EngineStats
from kvasir.core.request import Standing
from kvasir.serve.dashboard import (
    HEAR_SECONDS,
    MAX_SAMPLES,
    STALE_SECONDS,
    Monitor,
    quantile,
    rates,
    sample,
    shares,
    tick,
    window,
)
from kvasir.serve.metrics import Metrics
from kvasir.timing.records import Holding, StepRecord


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_quantiles_are_those_that_prometheus_makes_of_the_buckets() -> None:
    bounds = (1.0, 2.0, 4.0)
    assert quantile(bounds, (0, 0, 0, 0), 0.5) is None
    assert quantile(bounds, (10, 0, 0, 0), 0.5) == 0.5
    assert quantile(bounds, (10, 10, 0, 0), 0.75) == 1.5
    assert quantile(bounds, (0, 0, 4, 0), 1.0) == 4.0
    assert quantile(bounds, (0, 0, 0, 3), 0.5) == 4.0


def test_a_window_is_the_difference_of_two_samples() -> None:
    metrics = Metrics()
    measured = metrics.of("m", EngineStats)
    measured.first_token(Standing(), 0.2)
    before = sample(10.0, EngineStats(), metrics, "m")
    for name in ("realtime", "standard", "batch"):
        measured.first_token(Standing(priority_class=name), 3.0)  # type: ignore[arg-type]
    now = sample(70.0, EngineStats(), metrics, "m")
    told = window(before, now)
    assert told["seconds"] == 60.0
    assert told["ttft"]["count"] == 3
    assert told["ttft"]["p50"] == pytest.approx(3.75)  # between 2.5 and 5
    assert told["itl"] == {"count": 0, "p50": None, "p90": None, "p99": None}
    assert window(None, now)["ttft"]["count"] == 4


def test_rates_of_now_and_the_sample_that_is_old_enough() -> None:
    clock = Clock()
    monitor = Monitor(clock)
    for at in range(0, 700, 10):
        monitor.samples.append(sample(float(at), EngineStats(output_tokens=at), Metrics(), "m"))
    found = monitor.before(690.0, 60)
    assert found is not None and found.tick.at == 630.0
    oldest = monitor.before(690.0, 3600)
    assert oldest is not None and oldest.tick.at == 0.0
    assert monitor.rates(tick(700.0, EngineStats(output_tokens=790))) == (10.0, 0.0)
    assert monitor.rates(tick(701.0, EngineStats(output_tokens=990))) == (200.0, 0.0)
    assert rates(tick(1.0, EngineStats(output_tokens=9)), tick(2.0, EngineStats())) == (0.0, 0.0)


def test_an_hour_takes_less_than_a_megabyte() -> None:
    monitor = Monitor(Clock())
    metrics = Metrics()
    for i in range(2 * MAX_SAMPLES):
        stats = EngineStats(output_tokens=10**9 + i, prompt_tokens=10**9 + i, blocks_total=10**6)
        monitor.samples.append(sample(1e6 + i, stats, metrics, "m"))
    assert len(monitor.samples) == MAX_SAMPLES
    numbers = [x for s in monitor.samples for x in (*s.tick, *s[1:4], *s.ttft, *s.itl)]
    size = sum(sys.getsizeof(x) for s in monitor.samples for x in (s, s.tick, s.ttft, s.itl))
    assert size + 32 * len(numbers) < 10**6


def test_time_of_steps_is_shared_by_their_tokens() -> None:
    steps = [
        StepRecord(0, 5.0, 1.0, decodes=(1,)),  # too old
        StepRecord(1, 10.0, 0.4, decodes=(1, 2), chunks=((3, 0, 6),)),
        StepRecord(2, 10.5, 0.2, drafts=((1, 3),), forced=((2, 1),)),
    ]
    told = shares(steps, 11.0)
    assert (told["steps"], told["seconds"]) == (2, 2.0)
    assert told["decode"] == pytest.approx(0.1)
    assert told["prefill"] == pytest.approx(0.3)
    assert told["draft"] == pytest.approx(0.15)
    assert told["forced"] == pytest.approx(0.05)
    assert told["busy"] == pytest.approx(0.3)
    assert shares([], 11.0)["busy"] == 0.0


def test_a_snapshot_is_made_again_after_half_a_second() -> None:
    clock = Clock()
    monitor = Monitor(clock)
    assert monitor.fresh is None
    told: Any = {"object": "dashboard"}
    monitor.tell(told)
    assert monitor.fresh is told
    clock.now += 0.5
    assert monitor.fresh is None


def test_those_of_one_key_are_sent_what_was_written_once() -> None:
    clock = Clock()
    monitor = Monitor(clock)
    told: Any = {"object": "dashboard"}
    written = iter(range(9))

    def look(owner: bytes) -> bytes:
        return monitor.body(owner, lambda: b"%d" % next(written))

    monitor.tell(told)
    assert [look(x) for x in (b"a", b"b", b"a", b"b")] == [b"0", b"1", b"0", b"1"]
    monitor.tell(told)
    assert [look(x) for x in (b"b", b"a", b"b")] == [b"2", b"3", b"2"]


def test_who_begins_to_watch_sees_what_choices_hold() -> None:
    clock = Clock()
    monitor = Monitor(clock)
    held = (Holding(1, 40, 3),)
    answer = asyncio.Event()

    async def engine() -> tuple[Holding, ...]:
        await answer.wait()
        return held

    async def watch() -> None:
        await monitor.hear()  # nobody was asked
        monitor.ask(engine)
        began = time.monotonic()
        await monitor.hear()  # in the midst of a long step
        assert time.monotonic() - began >= HEAR_SECONDS and monitor.holdings == ()
        asyncio.get_running_loop().call_later(0.01, answer.set)
        await monitor.hear()
        assert monitor.holdings == held
        answer.clear()
        monitor.ask(engine)
        clock.now += STALE_SECONDS
        began = time.monotonic()
        await monitor.hear()
        assert time.monotonic() - began < HEAR_SECONDS
        answer.set()

    asyncio.run(watch())
