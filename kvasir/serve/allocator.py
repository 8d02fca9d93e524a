"""How the C library keeps memory, of the process that takes bodies."""

from __future__ import annotations

import asyncio
import ctypes

from kvasir.config.heap import trim

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's mallopt."""
LARGE_BYTES = 2**20
"""Above what the network is read into. glibc's own value grows to that of the largest block that
was ever freed, up to 32 MiB: then a body's memory would stay with the process after its answer."""
LEFT_BYTES = 2**14
"""What has read or sent fewer leaves little."""
GIVE_BACK_SECONDS = 0.25
"""Between two trims: half a millisecond each, and one for every 10 MB that go back."""


class Leftovers:
    """What requests are parsed to and answers gathered in lies between what stays, and goes back to
    the system when that is asked for. One for an event loop."""

    def __init__(self) -> None:
        self._is_due = False

    def give_back_soon(self) -> None:
        """Once for all who ask meanwhile."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(GIVE_BACK_SECONDS, self._give_back)

    def _give_back(self) -> None:
        self._is_due = False
        trim()


def give_back_large_blocks() -> None:
    """From now on, what is larger goes back to the system when it is free, where the C library can
    be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
