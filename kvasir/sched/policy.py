"""In which order waiting requests start, and prompts share the steps."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kvasir.sched.request import Request
from kvasir.timing.backlog import Backlog

MAX_GONE = 64
"""Items of a line that have left it and are not yet taken out."""
MAX_LOOKAHEAD = 32
"""Waiting requests that are looked at when the first ones cannot start."""


class Line:
    """Requests in an order of their own, by their seniority. O(log n) comparisons to find one, and
    the first ones leave without moving the others."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, int, Request]] = []
        self._head = 0
        """Items that have left."""

    def __len__(self) -> int:
        return len(self._items) - self._head

    def __iter__(self) -> Iterator[Request]:
        return iter(self.first(len(self)))

    def push(self, request: Request) -> None:
        """One that was preempted returns to where it came from, before all that came after it."""
        insort(self._items, (*request.seniority, request), lo=self._head)

    def remove(self, request: Request) -> None:
        items, head = self._items, self._head
        if items[head][3] is not request:
            del items[bisect_left(items, request.seniority, lo=head)]
            return
        self._head += 1
        if self._head == min(len(items), MAX_GONE):
            del items[: self._head]
            self._head = 0

    def first(self, n: int) -> list[Request]:
        return [item[3] for item in self._items[self._head : self._head + n]]


class Policy(Protocol):
    """Holds the waiting requests."""

    knows_classes: bool
    """Whether it tells priorities apart."""
    max_bypass: int
    """Requests that may start before one whose turn it is, because it does not fit or their
    prefixes are cached: that bounds how long it can starve."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]:
        """Class by class."""
        ...

    def n_waiting(self, rank: int) -> int:
        """Waiting requests of class ``rank`` and the higher ones."""
        ...

    def ahead(self, rank: int) -> Sequence[Backlog]:
        """The same requests as sums."""
        ...

    def claims(self, prompts: Iterable[Request]) -> int:
        """Tokens of running ``prompts`` that go before outputs of the lowest class."""
        ...

    def push(self, request: Request) -> None:
        """A request waits: it is new, or was preempted."""
        ...

    def remove(self, request: Request) -> None:
        """A request waits no more."""
        ...

    def is_open(self, n_running: int) -> bool:
        """Whether any request may start now."""
        ...

    def urgent(self) -> Request | None:
        """The waiting request of the highest class whose turn it is, where classes are known."""
        ...

    def turns(self) -> Iterator[Sequence[Request]]:
        """Waiting requests, first those whose turn it is. Among the requests of one turn a cached
        prefix goes first. Ends after a bounded number."""
        ...

    def full(self) -> None:
        """No further request fits now."""
        ...

    def started(self, request: Request) -> None:
        """A request runs, with what was cached of it."""
        ...

    def stopped(self, request: Request) -> None:
        """A request runs no more: it ended or was preempted; its counters are still those."""
        ...

    def computed(self, requests: Iterable[Request]) -> None:
        """Running requests may have computed more."""
        ...

    def order(self, prompts: list[Request]) -> list[Request]:
        """Running requests, the first to compute a chunk first."""
        ...

    def goes_first(self, running: Request) -> bool:
        """Whether some waiting request has a better claim to the step than ``running``."""
        ...


class Fcfs:
    """First come, first served: one line, and whoever does not fit holds it up."""

    knows_classes = False
    max_bypass = 0

    def __init__(self) -> None:
        self._line = Line()
        self._backlog = Backlog()

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def n_waiting(self, rank: int) -> int:
        return len(self._line)

    def ahead(self, rank: int) -> Sequence[Backlog]:
        return (self._backlog,)

    def claims(self, prompts: Iterable[Request]) -> int:
        return 0

    def push(self, request: Request) -> None:
        self._line.push(request)
        self._backlog.add(request)

    def remove(self, request: Request) -> None:
        self._line.remove(request)
        self._backlog.remove(request)

    def is_open(self, n_running: int) -> bool:
        return True

    def urgent(self) -> Request | None:
        return None

    def turns(self) -> Iterator[Sequence[Request]]:
        for request in self._line.first(MAX_LOOKAHEAD):
            yield (request,)

    def full(self) -> None:
        """Nothing is remembered of it."""

    def started(self, request: Request) -> None:
        """Nothing is owed."""

    def stopped(self, request: Request) -> None:
        """Nothing is owed."""

    def computed(self, requests: Iterable[Request]) -> None:
        """Nothing is owed."""

    def order(self, prompts: list[Request]) -> list[Request]:
        return prompts

    def goes_first(self, running: Request) -> bool:
        return False


class Static(Fcfs):
    """Batches as before iteration-level scheduling: the next one starts when all of the last one
    have ended. A baseline to compare with (Yu et al.: Orca)."""

    def __init__(self) -> None:
        super().__init__()
        self._is_filling = True

    def is_open(self, n_running: int) -> bool:
        """A batch fills until a request does not fit or none is left; it opens when empty."""
        self._is_filling = not n_running or (self._is_filling and len(self) > 0)
        return self._is_filling

    def full(self) -> None:
        self._is_filling = False
