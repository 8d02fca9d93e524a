"""How many requests a key sends and has open: a bucket of tokens for the rate (Turner: New
directions in communications), a count for the rest."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvasir.core.errors import CapacityError
from kvasir.serve.keys.key import KeyLimits

Headers = list[tuple[bytes, bytes]]
BUSY_SECONDS = 1.0
"""After which it is worth trying again when all requests of a key are open: nobody knows."""


class KeyMeter:
    """Of one key. The bucket is full at first and holds a minute's requests."""

    def __init__(self, limits: KeyLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._filled = clock()
        self._left = float(limits.requests_per_minute or 0)
        self.n_open = 0

    def follow(self, limits: KeyLimits) -> None:
        """The limits are others now; what was sent stays counted."""
        self._fill()
        before, now = self._limits.requests_per_minute, limits.requests_per_minute or 0
        self._left = float(now) if before is None else min(self._left, now)
        self._limits = limits

    def begin(self) -> None:
        """One more request, until its ``end``. Raises CapacityError."""
        most = self._limits.concurrency
        if most is not None and self.n_open >= most:
            raise _limited(
                f"{self.n_open} requests of this key are open, the most are {most}",
                "concurrency_exceeded",
                BUSY_SECONDS,
            )
        self._take()
        self.n_open += 1

    def end(self) -> None:
        self.n_open -= 1

    def headers(self) -> Headers:
        """OpenAI's names; none without a rate."""
        rate = self._limits.requests_per_minute
        if rate is None:
            return []
        self._fill()
        return [
            (b"x-ratelimit-limit-requests", str(rate).encode()),
            (b"x-ratelimit-remaining-requests", str(int(self._left)).encode()),
            (b"x-ratelimit-reset-requests", duration((rate - self._left) * 60 / rate).encode()),
        ]

    def _take(self) -> None:
        rate = self._limits.requests_per_minute
        if rate is None:
            return
        self._fill()
        if self._left < 1:
            raise _limited(
                f"this key may send {rate} requests a minute",
                "rate_limit_exceeded",
                (1 - self._left) * 60 / rate,
            )
        self._left -= 1

    def _fill(self) -> None:
        now, rate = self._clock(), self._limits.requests_per_minute or 0
        self._left = min(float(rate), self._left + (now - self._filled) * rate / 60)
        self._filled = now


def duration(seconds: float) -> str:
    """As OpenAI writes it: 17ms, 1s, 6m0s."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))}ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


def _limited(what: str, code: str, seconds: float) -> CapacityError:
    error = CapacityError(f"{what}: try again in {duration(seconds)}", code=code)
    error.retry_after = seconds
    return error
