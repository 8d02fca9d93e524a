"""What a process does while and once it loads what it keeps for its whole life."""

from __future__ import annotations

import gc

from kvasir.engine.heap import trim


def hurry() -> None:
    """No collection of garbage until ``settle`` or ``gc.enable``: loading makes much, drops little
    and would be looked through again and again, which takes a sixth of the time."""
    gc.disable()


def settle() -> None:
    """Gives the memory that loading has left free back to the system, where the C library can, and
    lets no collection of garbage look again at what start-up made."""
    gc.enable()
    gc.freeze()
    trim()
