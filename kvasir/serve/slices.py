"""Long work on the event loop: in slices, one request's after another's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator
from typing import TypeVar

Value = TypeVar("Value")
Work = Generator[None, None, Value]
"""Yields where it may stop: after every fraction of a millisecond."""

SLICE_SECONDS = 0.002
"""Of every pass of the loop; what comes after them waits for the next."""


def at_once(work: Work[Value]) -> Value:
    """What ``work`` returns, which is not long."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        value: Value = end.value
        return value


class Slices:
    """However many requests have long work, and whenever they come, a pass of the event loop does
    one slice of it: others wait for that and not for them. Long work goes in turns."""

    def __init__(
        self, seconds: float = SLICE_SECONDS, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds = seconds
        self._clock = clock
        self._turn = asyncio.Lock()
        self._end: float | None = None
        """When the time of this pass is over; None before its first slice."""

    async def run(self, work: Work[Value]) -> Value:
        """What ``work`` returns: at once where its time suffices."""
        try:
            while True:
                async with self._turn:
                    if self._end is not None and self._clock() >= self._end:
                        await asyncio.sleep(0)
                    self._slice(work)
        except StopIteration as end:
            value: Value = end.value
            return value
        finally:
            work.close()

    async def turn(self) -> None:
        """Returns in a pass that has time left: what follows without waiting is part of its slice,
        and should be short."""
        async with self._turn:
            if self._end is not None and self._clock() >= self._end:
                await asyncio.sleep(0)
            self._begin()

    def _slice(self, work: Work[Value]) -> None:
        """Raises StopIteration at the end of ``work``."""
        end = self._begin()
        next(work)
        while self._clock() < end:
            next(work)

    def _begin(self) -> float:
        """When the slice of this pass ends."""
        if self._end is None:
            self._end = self._clock() + self._seconds
            asyncio.get_running_loop().call_soon(self._next_pass)
        return self._end

    def _next_pass(self) -> None:
        self._end = None
