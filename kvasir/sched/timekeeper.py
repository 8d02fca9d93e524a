"""What time requests are allowed, and expected, to take."""

from __future__ import annotations

import time
from collections.abc import Callable

from kvasir.core.messages import TokenEvent
from kvasir.sched.deadlines import Deadlines, exceeded, unreachable
from kvasir.sched.outlook import Outlook, Wait
from kvasir.sched.prefix import Prefixes
from kvasir.sched.queues import Queues
from kvasir.sched.request import Request

Clock = Callable[[], float]
LOOK_SECONDS = 0.1
"""Between two looks at how long the queue will take."""
MIN_LOOK_SECONDS = 0.01
"""The same when a request has ended meanwhile."""


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
        self._wait = Wait()
        self._looked_at = 0.0
        self._is_stale = False

    def refusal(self, request: Request) -> TokenEvent | None:
        """What a request is told that is expected to miss its deadline; None when it is taken."""
        if not request.has_deadline:
            return None
        wait, step = self._wait_behind(request), self._outlook.step_seconds(self._queues.running, 1)
        n_cached = self._prefixes.n_cached(request)
        refusal = unreachable(request, self._outlook, wait, step, n_cached, self._clock())
        if refusal is None:
            self._deadlines.add(request)
        else:
            self.n_unreachable += 1
            self._outlook.doubt()
        return refusal

    def late(self) -> list[tuple[Request, TokenEvent]]:
        """Requests whose time is over, and what they are told."""
        if self._deadlines.is_idle:
            return []
        late = self._deadlines.expired(self._clock())
        self.n_expired += len(late)
        return [(request, exceeded(request, what)) for request, what in late]

    def wait(self) -> Wait:
        """How long requests wait for their start; looked at anew now and then."""
        if not self._queues.waiting:
            return Wait()
        now = self._clock()
        if now - self._looked_at >= (MIN_LOOK_SECONDS if self._is_stale else LOOK_SECONDS):
            self._looked_at, self._is_stale, self._wait = now, False, self._look()
        return self._wait

    def ended(self, request: Request) -> None:
        """A request has left: its place is free, and its length is known."""
        self._is_stale = True
        self._outlook.ended(request)

    def _wait_behind(self, request: Request) -> float:
        """Of those who wait, lower classes are not in the way."""
        queues = self._queues
        before = [other for other in queues.waiting if other.rank <= request.rank]
        return self._outlook.wait(queues.running, before, len(before)).last

    def _look(self) -> Wait:
        queues = self._queues
        return self._outlook.wait(queues.running, queues.waiting, len(queues.waiting))
