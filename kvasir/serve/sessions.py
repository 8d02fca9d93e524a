"""Sessions: the requests that a client names alike are answered one after another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kvasir.core.errors import CapacityError
from kvasir.serve.exchange import Exchange, take

MAX_WAITING = 32
"""Requests of one session that wait for their turn."""


@dataclass(slots=True)
class _SessionLine:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Given in the order in which it was asked for."""
    n: int = 0
    """Who has it or waits for it."""


class Sessions:
    """A session is there while it has requests."""

    def __init__(self) -> None:
        self._lines: dict[tuple[bytes, str], _SessionLine] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @asynccontextmanager
    async def turn(self, owner: bytes, session: str, exchange: Exchange) -> AsyncIterator[None]:
        """The block runs when those that came before have ended; at once without a session. Raises
        CapacityError (429), ClientGone."""
        if not session:
            yield
            return
        line = self._lines.setdefault((owner, session), _SessionLine())
        if line.n > MAX_WAITING:
            raise CapacityError(
                f"{MAX_WAITING} requests of this session wait: they are answered one after another",
                code="session_busy",
            )
        line.n += 1
        try:
            await take(line.turn, exchange.disconnected)
            try:
                yield
            finally:
                line.turn.release()
        finally:
            line.n -= 1
            if not line.n:
                del self._lines[owner, session]
