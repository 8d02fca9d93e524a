"""What time requests are allowed, and expected, to take."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvasir.core.messages import TokenEvent
from kvasir.sched.deadlines import Deadlines, exceeded, unreachable
from kvasir.sched.outlook import Outlook, Standing, Wait
from kvasir.sched.prefix import Prefixes
from kvasir.sched.queues import LOWEST, Queues
from kvasir.sched.request import Request

Clock = Callable[[], float]


class Timekeeper:
    """Times are seconds of ``clock``, which the deadlines of requests are told in."""

    def __init__(
        self, queues: Queues, prefixes: Prefixes, outlook: Outlook, clock: Clock = time.monotonic
    ) -> None:
        self.n_unreachable = 0
        self.n_expired = 0
        self._queues = queues
        self._prefixes = prefixes
        self._outlook = outlook
        self._clock = clock
        self._deadlines = Deadlines()
        self._standing: Standing | None = None
        """As of the last plan and end of a request; None when nobody has asked since."""

    def refusal(self, request: Request) -> TokenEvent | None:
        """What a request is told that is expected to miss its deadline; None when it is taken."""
        if not request.has_deadline:
            return None
        standing = self._look()
        # of those who wait, lower classes are not in the way
        wait = self._wait_behind(standing, request.rank).last
        step = self._outlook.step_seconds(standing, 1)
        n_cached = self._prefixes.n_cached(request)
        refusal = unreachable(request, self._outlook, wait, step, n_cached, self._clock())
        if refusal is None:
            self._deadlines.add(request)
        else:
            self.n_unreachable += 1
            self._outlook.doubt()
        return refusal

    def late(self) -> list[tuple[Request, TokenEvent]]:
        """Before a plan: requests whose time is over, and what they are told."""
        self._standing = None
        if self._deadlines.is_idle:
            return []
        late = self._deadlines.expired(self._clock())
        self.n_expired += len(late)
        return [(request, exceeded(request, what)) for request, what in late]

    def wait(self) -> Wait:
        """How long requests wait for their start."""
        return self._wait_behind(self._look(), LOWEST) if self._queues.waiting else Wait()

    def ended(self, request: Request) -> None:
        """A request has left: its place is free, and its length is known."""
        self._standing = None
        self._outlook.ended(request)

    def _wait_behind(self, standing: Standing, rank: int) -> Wait:
        waiting = self._queues.waiting
        return self._outlook.wait(standing, waiting.ahead(rank), waiting)

    def _look(self) -> Standing:
        queues = self._queues
        if self._standing is None:
            self._standing = self._outlook.standing(queues.running, queues.n_places)
        return self._standing
