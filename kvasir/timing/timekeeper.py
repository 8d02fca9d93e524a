"""What time requests are allowed, and expected, to take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from kvasir.core.messages import TokenEvent
from kvasir.core.request import LOWEST
from kvasir.timing.backlog import Backlog
from kvasir.timing.deadlines import Deadlines, exceeded, unreachable
from kvasir.timing.outlook import Occupancy, Outlook, Wait
from kvasir.timing.timed import Timed

Clock = Callable[[], float]


class Waiting(Protocol):
    """Those that wait, class by class."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Timed]: ...

    def ahead(self, rank: int) -> Sequence[Backlog]:
        """Those of class ``rank`` and the higher ones, as sums."""
        ...


class TimedQueues(Protocol):
    """Who runs, and who waits."""

    @property
    def waiting(self) -> Waiting: ...

    @property
    def running(self) -> Sequence[Timed]: ...

    @property
    def n_places(self) -> int:
        """Requests that can run at a time."""
        ...


class Timekeeper:
    """Times are seconds of ``clock``, which the deadlines of requests are told in."""

    def __init__(
        self, queues: TimedQueues, outlook: Outlook, clock: Clock = time.monotonic
    ) -> None:
        self.n_unreachable = 0
        self.n_expired = 0
        self._queues = queues
        self._outlook = outlook
        self._clock = clock
        self._deadlines = Deadlines()
        self._occupancy: Occupancy | None = None
        """As of the last plan and end of a request; None when nobody has asked since."""

    def refusal(
        self, request: Timed, n_cached: int, *, is_taken: bool = False
    ) -> TokenEvent | None:
        """What a request, ``n_cached`` tokens of which are there, is told when it is expected to
        miss its deadline; None when it is taken, as one is that ``is_taken`` already."""
        if not request.standing.has_deadline:
            return None
        if is_taken:
            self._deadlines.add(request)
            return None
        occupancy = self._look()
        # of those who wait, lower classes are not in the way
        wait = self._wait_behind(occupancy, request.rank).last
        step = self._outlook.step_seconds(occupancy, 1)
        refusal = unreachable(request, self._outlook, wait, step, n_cached, self._clock())
        if refusal is None:
            self._deadlines.add(request)
        else:
            self.n_unreachable += 1
            self._outlook.doubt()
        return refusal

    def late(self) -> list[TokenEvent]:
        """Before a plan: what requests are told whose time is over."""
        self._occupancy = None
        if self._deadlines.is_idle:
            return []
        late = self._deadlines.expired(self._clock())
        self.n_expired += len(late)
        return [exceeded(request, what) for request, what in late]

    def wait(self) -> Wait:
        """How long requests wait for their start."""
        return self._wait_behind(self._look(), LOWEST) if self._queues.waiting else Wait()

    def ended(self, request: Timed) -> None:
        """A request has left: its place is free, and its length is known."""
        self._occupancy = None
        self._outlook.ended(request)

    def _wait_behind(self, occupancy: Occupancy, rank: int) -> Wait:
        waiting = self._queues.waiting
        return self._outlook.wait(occupancy, waiting.ahead(rank), waiting)

    def _look(self) -> Occupancy:
        queues = self._queues
        if self._occupancy is None:
            self._occupancy = self._outlook.occupancy(queues.running, queues.n_places)
        return self._occupancy
