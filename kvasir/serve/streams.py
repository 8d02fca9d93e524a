"""What arrives from the engine for one HTTP request, waiting to be read."""

from __future__ import annotations

import asyncio
from collections import deque

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent


class EngineDown(KvasirError):
    """The engine process is not there; a new server is needed."""

    code = "engine_down"
    status = 503


class EventStream:
    """Events of the choices of one request. Choice i has engine id ``first_id + i``."""

    def __init__(self, first_id: int, n_choices: int, limit: int) -> None:
        self.first_id = first_id
        self.open = set(range(first_id, first_id + n_choices))
        """Ids whose last event has not arrived."""
        self._limit = limit
        self._pending: deque[TokenEvent] = deque()
        self._failure: Exception | None = None
        self._wake = asyncio.Event()

    def push(self, event: TokenEvent) -> bool:
        """False when the reader is too slow: the buffer is full and the request must be
        cancelled."""
        if len(self._pending) >= self._limit:
            return False
        self._pending.append(event)
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
                f"the client reads too slowly: {self._limit} token events wait for it",
                code="slow_reader",
                status=408,
            )
        )

    async def read(self) -> list[TokenEvent]:
        """All events that wait, at least one. Raises the failure once nothing waits before it."""
        while not self._pending:
            if self._failure is not None:
                raise self._failure
            self._wake.clear()
            await self._wake.wait()
        events = list(self._pending)
        self._pending.clear()
        return events
