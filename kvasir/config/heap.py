"""Memory that the C library keeps for later."""

from __future__ import annotations


def trim() -> None:
    """Gives what is free back to the system, where the C library can."""
    # Imported now: who starts an engine process imports this before, and has no time.
    import ctypes

    call = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if call is not None:
        call(0)
