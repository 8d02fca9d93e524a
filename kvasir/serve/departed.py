"""Choices whose clients have left, and which the engine has not heard of yet."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class _Departure(NamedTuple):
    owner: tuple[str, str]
    n_choices: int
    n_tokens: int
    n_sent: int
    """Choices that had been sent in all when it left."""


class Departed:
    """They count in the queue, and as those of who sent them, until the engine has received all
    that was sent before they left: to send and to leave makes nobody one who has few."""

    def __init__(self) -> None:
        self._gone: deque[_Departure] = deque()

    def clear(self) -> None:
        """Another engine never hears of them."""
        self._gone.clear()

    def add(self, owner: tuple[str, str], n_choices: int, n_tokens: int, n_sent: int) -> None:
        if n_choices:
            self._gone.append(_Departure(owner, n_choices, n_tokens, n_sent))

    def of(self, owner: tuple[str, str], n_received: int) -> tuple[int, int]:
        """Choices and prompt tokens of ``owner``, where the engine has received so many choices."""
        while self._gone and self._gone[0].n_sent <= n_received:
            self._gone.popleft()
        mine = [gone for gone in self._gone if gone.owner == owner]
        return sum(x.n_choices for x in mine), sum(x.n_tokens for x in mine)
