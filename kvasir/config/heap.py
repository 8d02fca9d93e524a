"""Memory that the C library keeps for later."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Gives what is free back to the system, where the C library can."""
    call = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if call is not None:
        call(0)
