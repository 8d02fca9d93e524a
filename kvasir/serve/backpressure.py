"""How long what is sent waited, because the client read slowly."""

from __future__ import annotations

import time
from collections.abc import Callable

LEAST_SECONDS = 0.001
"""Of a wait that is worth remembering."""
GAP_SECONDS = 0.05
"""Waits with less between them are one: a client that reads slowly takes what fits, and there is
the next one."""
MAX_WAITS = 16
"""The newest are kept."""


class Backpressure:
    """Of one response: the times in which the connection's write buffer was full (64 KiB; the
    kernel has buffers before it). Times are ``clock``'s."""

    __slots__ = ("_began", "_clock", "_waits")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waits: list[tuple[float, float]] = []
        """(begin, end), the oldest first."""
        self._began: float | None = None

    def begin(self) -> None:
        """Something is to be sent."""
        self._began = self._clock()

    def end(self) -> None:
        """It is, or will never be."""
        began, self._began = self._began, None
        now = self._clock()
        if began is None or now - began < LEAST_SECONDS:
            return
        if self._waits and began - self._waits[-1][1] < GAP_SECONDS:
            began, _ = self._waits.pop()
        self._waits.append((began, now))
        del self._waits[:-MAX_WAITS]

    def after(self, moment: float) -> float:
        """Seconds that it waited, so far, behind ``moment``."""
        waits = list(self._waits)
        if self._began is not None:
            waits.append((self._began, self._clock()))
        return sum([max(0.0, end - max(begin, moment)) for begin, end in waits])

    @property
    def version(self) -> float:
        """What changes with ``after``."""
        if self._began is not None:
            return self._clock()
        return self._waits[-1][1] if self._waits else 0.0
