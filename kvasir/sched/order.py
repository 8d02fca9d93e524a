"""Who is next: in which order waiting requests start, and prompts share the steps."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from kvasir.core.plan import Row
from kvasir.sched.request import Request
from kvasir.timing.backlog import Backlog

MAX_GONE = 64
"""Items of a line that have left it and are not yet taken out."""
MAX_LOOKAHEAD = 32
"""Waiting requests that are looked at when the first ones cannot start."""


Place = tuple[int, int, float, int]


def place(request: Request) -> Place:
    """In a line: its seniority, among equals of which users take turns."""
    rank, priority, arrival = request.seniority
    return rank, priority, request.turn.tag, arrival


class Line:
    """Requests in an order of their own, by their places. O(log n) comparisons to find one, and
    the first ones leave without moving the others."""

    def __init__(self) -> None:
        self._items: list[tuple[int, int, float, int, Request]] = []
        self._head = 0
        """Items that have left."""

    def __len__(self) -> int:
        return len(self._items) - self._head

    def __iter__(self) -> Iterator[Request]:
        return iter(self.first(len(self)))

    def push(self, request: Request) -> None:
        """One that was preempted returns to where it came from, before all that came after it."""
        insort(self._items, (*place(request), request), lo=self._head)

    def remove(self, request: Request) -> None:
        items, head = self._items, self._head
        if items[head][-1] is not request:
            del items[bisect_left(items, place(request), lo=head)]
            return
        self._head += 1
        if self._head == min(len(items), MAX_GONE):
            del items[: self._head]
            self._head = 0

    def first(self, n: int) -> list[Request]:
        return [item[-1] for item in self._items[self._head : self._head + n]]


class Order(Protocol):
    """Holds the waiting requests, class by class, and says who is next. What is written here holds
    where no class and no tenant goes before another."""

    max_bypass: int = 0
    """Requests that may start before one whose turn it is, because it does not fit or their
    prefixes are cached: that bounds how long it can starve."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Request]: ...

    def ahead(self, rank: int) -> Sequence[Backlog]:
        """Those of class ``rank`` and the higher ones, as sums."""
        ...

    def push(self, request: Request) -> None:
        """A request waits: it is new, or was preempted."""
        ...

    def remove(self, request: Request) -> None:
        """A request waits no more: it ended, or has a slot."""
        ...

    def turns(self, n_running: int) -> Iterator[Sequence[Request]]:
        """Waiting requests that may start now, first those whose turn it is. Among the requests of
        one turn a cached prefix goes first. Ends after a bounded number."""
        ...

    def urgent(self) -> Request | None:
        """The waiting request of the highest class whose turn it is, where classes are known and
        the turn is this class's."""
        return None

    def placeless(self) -> Iterator[Request]:
        """First waiting requests of tenants that run nothing in their class, first those whose turn
        it is. Ends after a bounded number."""
        return iter(())

    def takes_slot(self, waiting: Request, running: Request) -> bool:
        """Whether ``waiting``, whose tenant runs nothing, may have the slot of another tenant's
        ``running``."""
        return running.rank >= waiting.rank

    def gives_way(self, running: Sequence[Request]) -> Request:
        """Who of ``running``, in the order of seniority, gives its blocks to others. The most
        senior of several never does."""
        return running[-1]

    def goes_first(self, running: Request) -> bool:
        """Whether some waiting request has a better claim to the step than ``running``."""
        return False

    def ranked(self, prompts: list[Request]) -> list[Request]:
        """Running requests, the first to compute a chunk first."""
        return prompts

    def claims(self, prompts: Iterable[Request]) -> int:
        """Tokens of running ``prompts`` that go before outputs of the lowest class."""
        return 0


class Account:
    """Who computed what, charged to classes and tenants: an order may rest on it. This one charges
    nobody."""

    @property
    def is_shared(self) -> bool:
        """Several tenants are known."""
        return False

    def start(self, request: Request) -> None:
        """A request runs, with what was cached of it."""

    def charge(self, requests: Iterable[Request]) -> None:
        """Running requests may have computed more."""

    def verified(self, request: Request, row: Row, n_kept: int) -> None:
        """A row of drafts was computed, whose first ``n_kept`` tokens count as computed."""

    def owes(self, request: Request, seconds: float) -> None:
        """A draft program, or a tower, took so long for a request."""

    def stop(self, request: Request) -> None:
        """A request runs no more: it ended or was preempted; its counters are still those."""

    def end(self, request: Request) -> None:
        """A request is about to leave, whether it runs or waits."""


class Fcfs(Order):
    """First come, first served: one line, and whoever does not fit holds it up."""

    def __init__(self) -> None:
        self._line = Line()
        self._backlog = Backlog()

    def __len__(self) -> int:
        return len(self._line)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._line)

    def ahead(self, rank: int) -> Sequence[Backlog]:
        return (self._backlog,)

    def push(self, request: Request) -> None:
        self._line.push(request)
        self._backlog.add(request)

    def remove(self, request: Request) -> None:
        self._line.remove(request)
        self._backlog.remove(request)

    def turns(self, n_running: int) -> Iterator[Sequence[Request]]:
        return ((request,) for request in self._line.first(MAX_LOOKAHEAD))


class Static(Fcfs):
    """Batches as before iteration-level scheduling: the next one starts when all of the last one
    have ended. A baseline to compare with (Yu et al.: Orca)."""

    def __init__(self) -> None:
        super().__init__()
        self._is_filling = True

    def turns(self, n_running: int) -> Iterator[Sequence[Request]]:
        """A batch opens when none runs, and fills until nobody of a look at the line starts."""
        may_start = self._is_filling or not n_running
        self._is_filling = False
        return super().turns(n_running) if may_start else iter(())

    def remove(self, request: Request) -> None:
        super().remove(request)
        self._is_filling |= request.slot >= 0
