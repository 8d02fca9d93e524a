"""What an engine process shows while it runs, in memory that outlives it: that it goes on, and
whose rows are being computed. Its parent looks at it to see a hang, and after a death.

Nobody waits for anybody: an aligned word is written at once, and a place is filled before the
number of the plan in it is told.
"""

from __future__ import annotations

import mmap
import os
from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

MAX_IDS = 4096
"""Requests of one plan that are shown; of more rows the first."""
TURNS, N_DONE, N_LAUNCHED, PLACES = 0, 1, 2, 8
N_IDS, EXPECTED, TOWERS, IDS = 0, 1, 2, 8
"""Words of a place."""
PLACE = IDS + MAX_IDS
EXPECTED_OF = PLACES + EXPECTED, PLACES + PLACE + EXPECTED
TOWERS_OF = PLACES + TOWERS, PLACES + PLACE + TOWERS
WORD = 8
SIZE = WORD * (PLACES + 2 * PLACE)
"""Bytes. Pages that nobody writes take no memory."""


class Owner(Protocol):
    """Whose row it is."""

    @property
    def id(self) -> int: ...


class Progress(NamedTuple):
    """Numbers that change while an engine goes on."""

    turns: int
    """Of its loop."""
    n_done: int
    n_launched: int
    """Plans; at most two are launched and not done."""


class Heartbeat:
    """One process writes, another reads."""

    def __init__(self, fd: int) -> None:
        """``fd``: memory of ``SIZE`` bytes; it stays open."""
        self._memory = mmap.mmap(fd, SIZE)
        self._words = memoryview(self._memory).cast("q")
        self._seconds = memoryview(self._memory).cast("d")
        self._n_turns = self._n_done = self._n_launched = 0
        """As they were written last."""
        self._owners: list[Sequence[Owner]] = [(), ()]
        """Of the plans in the two places, while they are under way or the next has the same."""

    def turn(self) -> None:
        """The loop goes on."""
        self._words[TURNS] = self._n_turns = self._n_turns + 1

    def launched(self, owners: Sequence[Owner], seconds: float, towers: float = 0.0) -> None:
        """A plan with rows of ``owners``, expected to take ``seconds``, runs now or after the one
        before. ``towers``: seconds that those of its images may take beside."""
        n = self._n_launched
        side = n & 1
        if owners != self._owners[side]:
            self._show(side, owners)
        self._seconds[EXPECTED_OF[side]] = seconds
        self._seconds[TOWERS_OF[side]] = towers
        self._words[N_LAUNCHED] = self._n_launched = n + 1

    def done(self) -> None:
        """The oldest plan under way has its result."""
        self._words[N_DONE] = self._n_done = self._n_done + 1
        if self._n_done == self._n_launched:
            self._owners = [(), ()]

    def _show(self, side: int, owners: Sequence[Owner]) -> None:
        place = PLACES + side * PLACE
        ids = array("q", [owner.id for owner in owners[:MAX_IDS]])
        self._words[place + N_IDS] = len(ids)
        self._words[place + IDS : place + IDS + len(ids)] = memoryview(ids)
        self._owners[side] = owners

    @property
    def progress(self) -> Progress:
        words = self._words
        return Progress(words[TURNS], words[N_DONE], words[N_LAUNCHED])

    @property
    def expected(self) -> float:
        """Seconds of the plan that runs; 0 while none does."""
        return self._of_running(EXPECTED_OF)

    @property
    def towers(self) -> float:
        """Seconds that towers may take beside."""
        return self._of_running(TOWERS_OF)

    def _of_running(self, words: tuple[int, int]) -> float:
        _, n_done, n_launched = self.progress
        return self._seconds[words[n_done & 1]] if n_done < n_launched else 0.0

    @property
    def ids(self) -> frozenset[int]:
        """Whose rows were being computed, or would have been next."""
        found: set[int] = set()
        _, n_done, n_launched = self.progress
        for n in range(n_done, n_launched):
            place = PLACES + (n & 1) * PLACE
            first = place + IDS
            found.update(self._words[first : first + self._words[place + N_IDS]])
        return frozenset(found)

    def close(self) -> None:
        self._words.release()
        self._seconds.release()
        self._memory.close()


def new_memory() -> int:
    """The descriptor of memory for one heartbeat, which is a child's if it is told to pass it."""
    fd = os.memfd_create("kvasir-heartbeat")
    os.ftruncate(fd, SIZE)
    return fd
