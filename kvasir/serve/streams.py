"""What arrives from the engine for one HTTP request, waiting to be read."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from math import inf

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent


class EngineDown(KvasirError):
    """The engine process is not there; a new server is needed."""

    code = "engine_down"
    status = 503


class FatalRequest(KvasirError):
    """The engine died of it twice, the second time alone."""

    code = "engine_fault"


SLOW_SECONDS = 1.0
"""A reader that lives looks again within a fraction of it, also on a busy machine: who leaves
events for as long is slow, however many came with one step."""


SILENCE_SECONDS = 10.0
"""Proxies cut streams that are silent for 50 or 60 seconds."""

READ_EVENTS = 64
"""Read at a time: to tell them to a client takes one or two milliseconds."""
READ_ENDS = 8
"""Ends of choices that take as long: each closes a response, and is counted and logged."""
READ_LOGPROBS = 512
"""Log probabilities that take as long."""


def in_turns(events: Sequence[TokenEvent]) -> Iterator[Sequence[TokenEvent]]:
    """``events`` as their readers are given them, one part in each pass of the loop; at least
    one."""
    n_ends = sum(event.finish is not None for event in events)
    size = READ_EVENTS if n_ends <= READ_ENDS else READ_ENDS
    for first in range(0, max(1, len(events)), size):
        yield events[first : first + size]


def n_reads(events: Sequence[TokenEvent]) -> int:
    """In how many turns their readers have told ``events``."""
    n_logprobs = sum(len(x.logprobs) * (1 + len(x.logprobs[0].top)) for x in events if x.logprobs)
    return 1 + len(events) // READ_EVENTS + n_logprobs // READ_LOGPROBS


Hear = Callable[[TokenEvent], bool]


class EventStream:
    """Events of the choices of one request. Choice i has engine id ``first_id + i``."""

    __slots__ = (
        "_clock",
        "_failure",
        "_hear",
        "_is_silent",
        "_limit",
        "_news",
        "_pending",
        "_reader",
        "_timer",
        "first_id",
        "open",
        "silence",
    )

    def __init__(
        self,
        first_id: int,
        n_choices: int,
        limit: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``limit``: events that may wait for longer than SLOW_SECONDS."""
        self.first_id = first_id
        self.open = set(range(first_id, first_id + n_choices))
        """Ids whose last event has not arrived."""
        self._limit = limit
        self._pending: deque[tuple[float, TokenEvent]] = deque()
        """With the time of its arrival."""
        self._failure: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        """Whom to wake; None while nobody waits."""
        self._hear: Hear | None = None
        self._clock = clock
        self._is_silent = False
        self._news = clock()
        """When something was last read."""
        self.silence: float = SILENCE_SECONDS
        """After which a read ends with nothing, while somebody listens."""
        self._timer: asyncio.TimerHandle | None = None

    def push(self, event: TokenEvent) -> bool:
        """False when the reader is too slow: the buffer is full and the request must be
        cancelled."""
        if self._reader is not None and self._hear is not None and event.finish is None:
            try:
                is_heard = self._hear(event)
            except Exception as error:  # the stream's own failure
                self.fail(error)
                return True
            if is_heard:
                self._news = self._clock()
                return True
        now, pending = self._clock(), self._pending
        if len(pending) >= self._limit and now - pending[0][0] > SLOW_SECONDS:
            return False
        pending.append((now, event))
        if event.finish is not None:
            self.open.discard(event.id)
        if self._reader is not None:
            self._wake()
        return True

    def fail(self, error: Exception) -> None:
        """Ends the stream; what arrived before is still read first."""
        if self._failure is None:
            self._failure = error
        self._wake()

    def _wake(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None and not reader.done():
            reader.set_result(None)

    def overflow(self) -> None:
        self.fail(
            RequestError(
                f"the client reads too slowly: {len(self._pending)} token events wait for it",
                code="slow_reader",
                status=408,
            )
        )

    @property
    def has_news(self) -> bool:
        """Whether events wait for the reader."""
        return bool(self._pending)

    def hear(self, hear: Hear) -> None:
        """From now until ``hush`` events do not wait for the reader where it has read all before
        them: ``hear`` is called with each as it arrives, but for those that end a choice, and says
        whether it took it."""
        self._hear = hear

    def nudge(self) -> None:
        """Ends the read of who waits, with nothing."""
        self._is_silent = True
        self._wake()

    def listen(self) -> None:
        """From now until ``hush`` a read ends with nothing after every ``silence`` in which
        nothing came."""
        if self.silence != inf:
            self._arm(self.silence)

    def hush(self) -> None:
        self._hear = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        left = self._news + self.silence - self._clock()
        if left <= 0:
            self._news, left = self._clock(), self.silence
            self.nudge()
        self._arm(left)

    async def read(self) -> list[TokenEvent]:
        """Events that wait, the oldest first, at most READ_EVENTS; none when it was silent. Raises
        the failure once nothing waits before it. Between two reads everybody else has a turn."""
        if self._pending:
            await asyncio.sleep(0)
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            if self._is_silent:
                self._is_silent = False
                return []
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        pending = self._pending
        self._news, self._is_silent = pending[-1][0], False
        if len(pending) == 1:
            return [pending.popleft()[1]]
        n = min(len(pending), READ_EVENTS)
        return [pending.popleft()[1] for _ in range(n)]
