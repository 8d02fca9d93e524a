"""What a process does once it has loaded what it keeps for its whole life."""

from __future__ import annotations

import ctypes
import gc


def settle() -> None:
    """Gives the memory that loading has left free back to the system, where the C library can, and
    lets no collection of garbage look again at what start-up made."""
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
