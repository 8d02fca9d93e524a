"""What arrives from the engine for one HTTP request, waiting to be read."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent


class EngineDown(KvasirError):
    """The engine process is not there; a new server is needed."""

    code = "engine_down"
    status = 503


SLOW_SECONDS = 1.0
"""A reader that lives looks again within a fraction of it, also on a busy machine: who leaves
events for as long is slow, however many came with one step."""


READ_EVENTS = 64
"""Read at a time: to tell them to a client takes one or two milliseconds."""
READ_LOGPROBS = 512
"""Log probabilities that take as long."""


def n_reads(events: Sequence[TokenEvent]) -> int:
    """In how many turns their readers have told ``events``."""
    n_logprobs = sum(len(x.logprobs) * (1 + len(x.logprobs[0].top)) for x in events if x.logprobs)
    return 1 + len(events) // READ_EVENTS + n_logprobs // READ_LOGPROBS


class EventStream:
    """Events of the choices of one request. Choice i has engine id ``first_id + i``."""

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
        self._wake = asyncio.Event()
        self._clock = clock

    def push(self, event: TokenEvent) -> bool:
        """False when the reader is too slow: the buffer is full and the request must be
        cancelled."""
        now, pending = self._clock(), self._pending
        if len(pending) >= self._limit and now - pending[0][0] > SLOW_SECONDS:
            return False
        pending.append((now, event))
        if event.finish is not None:
            self.open.discard(event.id)
        self._wake.set()
        return True

    def fail(self, error: Exception) -> None:
        """Ends the stream; what arrived before is still read first."""
        if self._failure is None:
            self._failure = error
        self._wake.set()

    def overflow(self) -> None:
        self.fail(
            RequestError(
                f"the client reads too slowly: {len(self._pending)} token events wait for it",
                code="slow_reader",
                status=408,
            )
        )

    async def read(self) -> list[TokenEvent]:
        """Events that wait, the oldest first: at least one, at most READ_EVENTS. Raises the failure
        once nothing waits before it. Between two reads everybody else has a turn."""
        if self._pending:
            await asyncio.sleep(0)
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            self._wake.clear()
            await self._wake.wait()
        n = min(len(self._pending), READ_EVENTS)
        return [self._pending.popleft()[1] for _ in range(n)]
