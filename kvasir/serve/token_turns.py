"""The order in which tokens of the choices of a kept answer are told.

It depends neither on the steps that gave them nor on where the answer was taken up, so that the
events of a stream are the same however often it is computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence

from kvasir.core.messages import TokenEvent


class TokenTurns:
    """A token of each choice at a time, of so many choices as an engine computes together: each of
    them has a seat, and where one has ended the next takes its seat at its turn."""

    def __init__(self, n_choices: int, n_at_once: int, told: Sequence[TokenEvent]) -> None:
        """``n_at_once``: 0 is all; ``told``: what was due before."""
        self._waiting: list[deque[TokenEvent]] = [deque() for _ in range(n_choices)]
        self._seats = list(range(min(n_at_once or n_choices, n_choices)))
        self._next = len(self._seats)
        """The choice that takes the next free seat."""
        self._turn = 0
        seats = {choice: choice for choice in self._seats}
        for event in told:
            if event.id not in seats:
                seats[event.id] = self._turn
                self._seats[self._turn] = event.id
                self._next = event.id + 1
            if event.tokens or event.finish is not None:
                self._turn = (seats[event.id] + 1) % len(self._seats)

    def add(self, choice: int, event: TokenEvent) -> None:
        self._waiting[choice].append(event)

    def due(self, ended: Collection[int]) -> list[tuple[int, TokenEvent]]:
        """The events whose turn has come, but for those of choices that have ``ended``: while
        others wait for seats at most one round, so that who tells them knows which end with it."""
        found: list[tuple[int, TokenEvent]] = []
        done, n_idle, n_seats = set(ended), 0, len(self._seats)
        while n_idle < n_seats and not (self._has_more and len(found) >= n_seats):
            choice = self._seated(done)
            if choice in done:
                n_idle += 1
            elif not self._waiting[choice]:
                break
            else:
                event = self._waiting[choice].popleft()
                found.append((choice, event))
                if event.finish is not None:
                    done.add(choice)
                elif not event.tokens:
                    continue
                n_idle = 0
            self._turn = (self._turn + 1) % n_seats
        return found

    @property
    def _has_more(self) -> bool:
        """Whether choices wait for a seat."""
        return self._next < len(self._waiting)

    def _seated(self, done: Collection[int]) -> int:
        """Who has the turn; one that has ended has it where nobody waits for its seat."""
        if self._seats[self._turn] in done and self._has_more:
            self._seats[self._turn] = self._next
            self._next += 1
        return self._seats[self._turn]
