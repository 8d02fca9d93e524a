"""What a key may send: rate, requests at a time, the largest request, classes."""

from __future__ import annotations

import pytest

from kvasir.core.errors import CapacityError, KvasirError, RequestError
from kvasir.serve.admission import AdmissionLimits
from kvasir.serve.keys.caller import ANYONE, Caller
from kvasir.serve.keys.key import KeyLimits
from kvasir.serve.keys.meter import KeyMeter, duration


def code(error: KvasirError) -> tuple[int, str]:
    return error.status, error.code


def test_a_rate_fills_up_again() -> None:
    now = [0.0]
    meter = KeyMeter(KeyLimits(requests_per_minute=6), lambda: now[0])
    for left in range(5, -1, -1):
        meter.begin()
        assert dict(meter.headers())[b"x-ratelimit-remaining-requests"] == str(left).encode()
    with pytest.raises(CapacityError, match="6 requests a minute: try again in 10s") as caught:
        meter.begin()
    assert (code(caught.value), caught.value.retry_after) == ((429, "rate_limit_exceeded"), 10.0)
    now[0] = 15.0
    meter.begin()
    assert dict(meter.headers()) == {
        b"x-ratelimit-limit-requests": b"6",
        b"x-ratelimit-remaining-requests": b"0",
        b"x-ratelimit-reset-requests": b"55s",
    }
    now[0] = 1e6
    assert dict(meter.headers())[b"x-ratelimit-remaining-requests"] == b"6"


def test_open_requests_are_bounded_and_one_that_ends_makes_room() -> None:
    meter = KeyMeter(KeyLimits(concurrency=2))
    meter.begin(), meter.begin()
    with pytest.raises(CapacityError, match="2 requests of this key are open") as caught:
        meter.begin()
    assert code(caught.value) == (429, "concurrency_exceeded")
    meter.end()
    meter.begin()
    assert meter.headers() == []


def test_other_limits_hold_at_once() -> None:
    now = [0.0]
    meter = KeyMeter(KeyLimits(requests_per_minute=100), lambda: now[0])
    meter.begin()
    meter.follow(KeyLimits(requests_per_minute=2))
    assert dict(meter.headers())[b"x-ratelimit-remaining-requests"] == b"2"
    meter.follow(KeyLimits())
    meter.follow(KeyLimits(requests_per_minute=3))
    assert dict(meter.headers())[b"x-ratelimit-remaining-requests"] == b"3"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0171, "17ms"), (1, "1s"), (59.6, "1m0s"), (360, "6m0s"), (3725, "62m5s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_the_largest_request_of_a_key() -> None:
    limits = AdmissionLimits(100, 1000, KeyLimits(n=4, prompt_tokens=50))
    limits.check(1, 4, 50)
    limits.check(4, 1, 50)
    for asked, param in (((1, 5, 0), "n"), ((5, 1, 0), "prompt"), ((1, 1, 51), "prompt")):
        with pytest.raises(RequestError, match="this key may") as caught:
            limits.check(*asked)
        assert (caught.value.status, caught.value.param) == (400, param)


def test_classes_of_a_key() -> None:
    caller = Caller("alice", frozenset(), KeyLimits(classes=("batch", "standard")))
    caller.check_class("batch")
    with pytest.raises(RequestError, match=r"'alice' may not .* use batch or standard") as caught:
        caller.check_class("realtime")
    assert code(caught.value) == (403, "class_not_allowed")
    ANYONE.check_class("realtime")
