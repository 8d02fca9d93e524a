"""What connections share: how many there are, and who goes when there are too many."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum

from kvasir.serve.http_limits import RESERVE


class Patience(IntEnum):
    """Why a connection waits; those that lose least by being closed come first."""

    LINGERING = 0
    """Its last answer is sent; it is only still being heard."""
    SILENT = 1
    """It never asked anything."""
    IDLE = 2
    """Its client keeps it and may be sending its next request right now."""


IDLE_SECONDS = 2.0
"""After which a connection is closed that asks for nothing, once others accept. What a client sends
at that very moment is lost, so those that ask more often are told in an answer instead."""


class Place:
    """One connection. ``close`` ends it, and may be called again."""

    def __init__(self, close: Callable[[], None]) -> None:
        self.close = close
        self.is_reserve = False
        """Whether it is beyond the limit, for a health route only."""


class Connections:
    """At most ``limit``, and ``RESERVE`` beyond for health routes while nobody waits."""

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.is_ending = False
        """Whether the next request of each is its last."""
        self._open: set[Place] = set()
        self._reserve: dict[Place, None] = {}
        self._clock = clock
        self._waiting: dict[Patience, dict[Place, float]] = {patience: {} for patience in Patience}
        """With the time since when."""

    def __len__(self) -> int:
        """All that are open."""
        return len(self._open) + len(self._reserve)

    def enter(self, place: Place) -> None:
        """A newcomer takes the place of who waits longest; with nobody waiting, one in the
        reserve."""
        if len(self._open) >= self.limit and not self._close_one():
            place.is_reserve = True
            if len(self._reserve) >= RESERVE:
                self._drop(next(iter(self._reserve)))
            self._reserve[place] = None
            return
        self._open.add(place)
        self.wait(place, Patience.SILENT)

    def leave(self, place: Place) -> None:
        """``place`` is closed."""
        self.work(place)
        self._open.discard(place)
        self._reserve.pop(place, None)

    def wait(self, place: Place, patience: Patience) -> None:
        """From now on ``place`` may be closed for a newcomer."""
        self.work(place)
        if not place.is_reserve:
            self._waiting[patience][place] = self._clock()

    def work(self, place: Place) -> None:
        """``place`` has a request and is not closed for others."""
        for waiting in self._waiting.values():
            waiting.pop(place, None)

    def close_idle(self) -> None:
        """Those that have asked for nothing for a while."""
        since = self._clock() - IDLE_SECONDS
        every = (found for waiting in self._waiting.values() for found in waiting.items())
        for place in [place for place, began in every if began <= since]:
            self._drop(place)

    def _close_one(self) -> bool:
        longest = next((place for who in self._waiting.values() for place in who), None)
        if longest is None:
            return False
        self._drop(longest)
        return True

    def _drop(self, place: Place) -> None:
        self.leave(place)
        place.close()
