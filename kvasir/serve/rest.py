"""When an engine sleeps: its process has ended and its memory is free, and what is asked waits.

It comes back from its packed weights, and goes on with what it had not answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_LOOK_SECONDS = 1.0
"""Between two looks whether anything was asked."""


@dataclass(slots=True)
class Rest:
    """One sleep."""

    is_held: bool
    """Only the operator ends it; else a request does too."""
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Idleness:
    """For how long nothing was asked. Probes of the server's own are no requests."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._seen: tuple[int, object] = (-1, None)
        self._since = 0.0

    @property
    def look_seconds(self) -> float:
        return min(MAX_LOOK_SECONDS, self._seconds / 4)

    def look(self, n_asked: int, engine: object, *, is_used: bool) -> bool:
        """Whether it was long enough. ``n_asked``: requests so far; ``engine``: that runs, for one
        may sleep and another start between two looks; ``is_used``: some requests are not answered,
        or the engine is not there yet."""
        seen = n_asked, engine
        if seen != self._seen or is_used:
            self._seen, self._since = seen, self._clock()
        return self._clock() - self._since >= self._seconds
