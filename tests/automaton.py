"""A toy grammar: places on a ring, and tokens that step from one to another.

The constraint "7:3" is a ring of 7 places. Token t steps t places on, and may only land on the
first 3; so the place after an output depends on all outputs so far.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kvasir.sampling.masks import Bits


class Ring:
    """The ``Masks`` of one engine."""

    def __init__(self, vocab_size: int) -> None:
        self._ids = np.arange(vocab_size)
        self._slots: dict[int, tuple[int, int, int]] = {}
        """Places, those that are allowed, and where the outputs so far lead."""

    def prepare(self, constraint: str) -> Callable[[], bool]:
        """There is nothing to make."""
        return lambda: True

    def open(self, slot: int, constraint: str, outputs: Sequence[int]) -> None:
        assert slot not in self._slots, f"slot {slot} is open"
        n, n_allowed = places(constraint)
        self._slots[slot] = n, n_allowed, walk(n, n_allowed, 0, outputs)

    def accept(self, slot: int, tokens: Sequence[int]) -> None:
        n, n_allowed, place = self._slots[slot]
        self._slots[slot] = n, n_allowed, walk(n, n_allowed, place, tokens)

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        n, n_allowed, place = self._slots[slot]
        allowed = (walk(n, n_allowed, place, path) + self._ids) % n < n_allowed
        packed = np.packbits(np.pad(allowed, (0, -len(allowed) % 32)), bitorder="little")
        bits[:] = packed.view("<u4")

    def close(self, slot: int) -> None:
        del self._slots[slot]


def places(constraint: str) -> tuple[int, int]:
    """(places, those that are allowed)."""
    n, n_allowed = map(int, constraint.split(":"))
    return n, n_allowed


def walk(n: int, n_allowed: int, place: int, tokens: Iterable[int]) -> int:
    """Where ``tokens`` lead. Raises ValueError where they may not."""
    for token in tokens:
        place = (place + token) % n
        if place >= n_allowed:
            raise ValueError(f"token {token} leads to place {place} of {n}")
    return place


def keeps_to(constraint: str, tokens: Iterable[int]) -> bool:
    try:
        walk(*places(constraint), 0, tokens)
    except ValueError:
        return False
    return True
