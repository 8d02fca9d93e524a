"""What a process does while and once it loads what it keeps for its whole life."""

from __future__ import annotations

import gc

from kvasir.config.heap import trim

YOUNG = 3500
"""Objects that were made and not dropped, after which those are looked through: several times what
a step of 256 requests makes and the next one drops."""
MIN_UNTIDY = 100
"""Collections of what is young, 7,000 objects that stay each, that make ``tidy`` worthwhile."""
MAX_UNTIDY = 10_000
"""The same after which everything is looked through whatever runs."""
SERVER_UNTIDY = 400
"""The same for a server, whose requests leave a little garbage where answers are read for calls and
reasoning."""


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


def rarely(max_untidy: int = MAX_UNTIDY) -> None:
    """Looks through what is young seldom, and through what has lived for long (thousands of waiting
    requests, among which there is hardly any garbage) only in ``tidy``, or after ``max_untidy``: it
    takes tens of milliseconds, in which no step begins and no client is answered."""
    gc.set_threshold(YOUNG, 0, max_untidy)


def tidy() -> None:
    """Collects all garbage if much has happened since; for a moment when there is no work."""
    if gc.get_count()[2] >= MIN_UNTIDY:
        gc.collect()
