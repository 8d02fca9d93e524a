"""What a process does while and once it loads what it keeps for its whole life."""

from __future__ import annotations

import gc

from kvasir.engine.heap import trim

YOUNG = 3500
"""Objects that were made and not dropped, after which those are looked through: several times what
a step of 256 requests makes and the next one drops."""
MIN_UNTIDY = 100
"""Collections of what is young, 7,000 objects that stay each, that make ``tidy`` worthwhile."""
MAX_UNTIDY = 10_000
"""The same after which everything is looked through whatever runs."""


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


def rarely() -> None:
    """Looks through what is young seldom, and through what has lived for long (thousands of waiting
    requests, among which there is hardly any garbage) only in ``tidy``, or after very much: it
    takes tens of milliseconds. For the engine, whose steps wait for it and which makes no cycles.
    """
    gc.set_threshold(YOUNG, 0, MAX_UNTIDY)


def tidy() -> None:
    """Collects all garbage if much has happened since; for a moment when there is no work."""
    if gc.get_count()[2] >= MIN_UNTIDY:
        gc.collect()
