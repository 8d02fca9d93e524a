"""First tokens that come late are told with what they waited for, a line a second at most."""

from __future__ import annotations

import asyncio
import logging
import time
from math import inf
from typing import Any, cast

import pytest

from kvasir.core.errors import KvasirError
from kvasir.serve.answers.page import WhyChoice
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.exchange import Exchange
from kvasir.serve.late import LateLog, first_token_at
from kvasir.serve.logs import FIELDS
from kvasir.serve.served import Served

SLOTS: WhyChoice = {
    "index": 0,
    "state": "running",
    "seconds": 0.4,
    "cause": "slots",
    "sentence": "it waited",
}


def exchange(**notes: object) -> Exchange:
    unused = cast(Any, None)
    made = Exchange({"headers": []}, unused, unused, cast(BodyBudget, None))
    made.note(notes)
    return made


def late(seconds: float) -> Exchange:
    return exchange(output_tokens=3, queue_time_ms=seconds * 1000 - 5.0, prefill_time_ms=5.0)


async def slots(moment: float) -> WhyChoice:
    return SLOTS


def lines(
    caplog: pytest.LogCaptureFixture,
    asked: Exchange,
    target_ms: int | None,
    *,
    ttft: float = inf,
    told: WhyChoice | None = SLOTS,
) -> list[dict[str, object]]:
    moments = []

    async def explain(moment: float) -> WhyChoice:
        moments.append(moment)
        if told is None:
            raise KvasirError("the engine is gone")
        return told

    async def run() -> None:
        arrived = asked.arrived
        served = Served("cmpl-a", 1, 1, b"", "m", received=arrived, ttft_by=arrived + ttft)
        LateLog().check(asked, served, target_ms, explain)
        await asyncio.sleep(0.01)

    caplog.clear()
    asyncio.run(run())
    assert all(moment == pytest.approx(first_token_at(asked), abs=1.0) for moment in moments)
    return [getattr(x, FIELDS) for x in caplog.records if x.message == "first token late"]


def test_who_is_late_is_told_with_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (line,) = lines(caplog, late(0.4), 300)
    assert line == {
        "response": "cmpl-a",
        "first_token_ms": 400,
        "target_ms": 300,
        "cause": "slots",
        "why": "it waited",
    }
    assert lines(caplog, late(0.4), 500) == lines(caplog, late(0.4), None) == []
    assert lines(caplog, exchange(output_tokens=0, error="client_gone"), 1) == []
    (line,) = lines(caplog, late(0.4), None, ttft=0.2)
    assert line["target_ms"] == 200
    (line,) = lines(caplog, late(0.4), 300, told={**SLOTS, "cause": None})
    assert line["cause"] == "prompt"
    (line,) = lines(caplog, late(0.4), 300, told=None)
    assert "cause" not in line and line["first_token_ms"] == 400


def test_who_was_given_up_had_no_first_token(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    asked = exchange(error="deadline_exceeded", output_tokens=0)
    time.sleep(0.02)
    (line,) = lines(caplog, asked, None, ttft=0.01)
    assert line["target_ms"] == 10 and cast(int, line["first_token_ms"]) >= 20


def test_an_overload_is_a_line_a_second(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    now = [0.0]
    log = LateLog(lambda: now[0])

    async def run() -> None:
        for at in (0.0, 0.1, 0.9, 1.0, 2.5):
            now[0] = at
            asked = late(0.4)
            served = Served("cmpl-a", 1, 1, b"", "m", received=asked.arrived)
            log.check(asked, served, 100, slots)
            await asyncio.sleep(0.01)

    asyncio.run(run())
    told = [getattr(record, FIELDS).get("more_were_late") for record in caplog.records]
    assert told == [None, 2, None]
