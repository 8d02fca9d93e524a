"""When an engine process that lives is taken for dead."""

from __future__ import annotations

import asyncio
import logging
import subprocess
from typing import Protocol

from kvasir.serve.death import SAY_WHERE
from kvasir.serve.heartbeat import Progress
from kvasir.serve.procfs import ProcessSigns

logger = logging.getLogger("kvasir.watchdog")

TICK_SECONDS = 0.25
"""Between two looks. Of a longer time between them, in which this process did not run either, no
more than twice as much counts."""
MIN_SECONDS = 5.0
SAY_SECONDS = 0.1
TIMES_EXPECTED = 20.0
"""A step may take so many times what it was expected to, and always MIN_SECONDS: a cost that was
not measured yet makes it slow, and not dead."""


class Heart(Protocol):
    @property
    def progress(self) -> Progress: ...

    @property
    def expected(self) -> float: ...

    @property
    def towers(self) -> float: ...


class Signs(Protocol):
    @property
    def n_faults(self) -> int: ...

    def waited(self) -> float: ...


class Watchdog:
    """Counts the time in which an engine that has something to do does not go on. Waiting for a CPU
    that others use does not count, and to read pages from disk is to go on. It asks no clock of
    the engine, and one that jumps adds one look at most."""

    def __init__(self, heart: Heart, signs: Signs) -> None:
        self._heart = heart
        self._signs = signs
        self._last: Progress | None = None
        self._n_faults = 0
        self._at = 0.0
        self.still = 0.0
        """Seconds."""

    @property
    def limit(self) -> float:
        """Towers have the time that they take on a slow machine, which is told, and once."""
        return max(MIN_SECONDS, TIMES_EXPECTED * self._heart.expected) + self._heart.towers

    def look(self, now: float, *, has_work: bool) -> bool:
        """Whether the engine hangs. ``now``: seconds of a monotonic clock; ``has_work``: something
        was asked of it and is not answered."""
        seconds = min(max(0.0, now - self._at), 2 * TICK_SECONDS)
        self._at = now
        progress = self._heart.progress
        if progress != self._last or not has_work:
            self._last, self.still = progress, 0.0
            return False
        n_faults, before = self._signs.n_faults, self._n_faults
        self._n_faults = n_faults
        self.still += max(0.0, seconds - self._signs.waited())
        if n_faults != before:
            self.still = 0.0
        return self.still > self.limit


async def kill_hung(process: subprocess.Popen[bytes]) -> None:
    """Ends ``process``, once it had time to say where it is."""
    process.send_signal(SAY_WHERE)
    await asyncio.sleep(SAY_SECONDS)
    process.kill()


async def kill_stopped(process: subprocess.Popen[bytes]) -> None:
    """Ends ``process``, which starts, once a signal has stopped it for MIN_SECONDS. A start may
    take long and has no heartbeat, but one that was stopped never ends."""
    signs, still = ProcessSigns(process.pid), 0.0
    while still <= MIN_SECONDS:
        await asyncio.sleep(TICK_SECONDS)
        still = still + TICK_SECONDS if signs.is_stopped else 0.0
    logger.error("the engine process, stopped by a signal while it started, was killed")
    process.kill()
