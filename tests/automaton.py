"""A toy grammar: places on a ring, and tokens that step from one to another.

The constraint "7:3" is a ring of 7 places. Token t steps t places on, and may only land on the
first 3; so the place after an output depends on all outputs so far. With "7:3!" the first place
alone is free: from place p behind it one token leads back to p - 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from kvasir.sampling.masks import Bits, NativeFill

LATE = 0.02
"""Seconds that a late mask takes."""


class Ring:
    """The ``Masks`` of one engine."""

    def __init__(self, vocab_size: int) -> None:
        self._ids = np.arange(vocab_size)
        self._slots: dict[int, tuple[str, int]] = {}
        """Constraints, and where the outputs so far lead."""

    def prepare(self, constraint: str) -> Callable[[], bool]:
        """There is nothing to make."""
        return lambda: True

    def open(self, slot: int, constraint: str, outputs: Sequence[int]) -> None:
        assert slot not in self._slots, f"slot {slot} is open"
        self._slots[slot] = constraint, walk(constraint, 0, outputs)

    def accept(self, slot: int, tokens: Sequence[int]) -> None:
        constraint, place = self._slots[slot]
        self._slots[slot] = constraint, walk(constraint, place, tokens)

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        constraint, place = self._slots[slot]
        n, n_allowed = places(constraint)
        place = walk(constraint, place, path)
        allowed = (place + self._ids) % n < n_allowed
        if (only := forced(constraint, place)) >= 0:
            allowed = self._ids == only
        packed = np.packbits(np.pad(allowed, (0, -len(allowed) % 32)), bitorder="little")
        bits[:] = packed.view("<u4")

    def native(self, slot: int, tokens: Sequence[int]) -> NativeFill | None:
        return None

    def filled(self, slot: int, tokens: Sequence[int]) -> None:
        """Never."""

    def close(self, slot: int) -> None:
        del self._slots[slot]


class LateRing(Ring):
    """The first mask of an answer takes longer than a step waits for one, and every third then."""

    def __init__(self, vocab_size: int) -> None:
        super().__init__(vocab_size)
        self._n_asked: dict[int, int] = {}

    def fill(self, slot: int, path: Sequence[int], bits: Bits) -> None:
        self._n_asked[slot] = n = self._n_asked.get(slot, 0) + 1
        if n % 3 == 1:
            time.sleep(LATE)
        super().fill(slot, path, bits)


def places(constraint: str) -> tuple[int, int]:
    """(places, those that are allowed)."""
    n, n_allowed = map(int, constraint.rstrip("!").split(":"))
    return n, n_allowed


def forced(constraint: str, place: int) -> int:
    """The one token that may follow at ``place``; -1 where others may. No two places force one."""
    n, _ = places(constraint)
    return n * place + n - 1 if place and constraint.endswith("!") else -1


def walk(constraint: str, place: int, tokens: Iterable[int]) -> int:
    """Where ``tokens`` lead. Raises ValueError where they may not."""
    n, n_allowed = places(constraint)
    for token in tokens:
        only = forced(constraint, place)
        place = (place + token) % n
        if place >= n_allowed or only not in (-1, token):
            raise ValueError(f"token {token} leads to place {place} of {n}")
    return place


def keeps_to(constraint: str, tokens: Iterable[int]) -> bool:
    try:
        walk(constraint, 0, tokens)
    except ValueError:
        return False
    return True
