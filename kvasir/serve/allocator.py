"""How the C library keeps memory, of the process that takes bodies."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's mallopt."""
LARGE_BYTES = 2**20
"""Above what the network is read into. glibc's own value grows to that of the largest block that
was ever freed, up to 32 MiB: then a body's memory would stay with the process after its answer."""


def give_back_large_blocks() -> None:
    """From now on, what is larger goes back to the system when it is free, where the C library can
    be told."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, LARGE_BYTES)
