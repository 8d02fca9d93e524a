"""A lock that its owners take in turns, whoever came first among those of one; or several."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairLock:
    """Lives in one event loop."""

    def __init__(self, n_places: int = 1) -> None:
        """``n_places``: how many have it at a time."""
        self._n_free = n_places
        self._lines: OrderedDict[Hashable, deque[asyncio.Future[None]]] = OrderedDict()
        """Who waits, by owner; the first owner is the next."""

    def n_waiting(self, owner: Hashable) -> int:
        return len(self._lines.get(owner, ()))

    @asynccontextmanager
    async def taken(self, owner: Hashable) -> AsyncIterator[None]:
        await self._take(owner)
        try:
            yield
        finally:
            self._give()

    async def _take(self, owner: Hashable) -> None:
        if self._n_free:
            self._n_free -= 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._lines.setdefault(owner, deque())
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it came, and nobody takes it
                self._give()
            else:
                self._leave(owner, line, turn)
            raise

    def _leave(
        self, owner: Hashable, line: deque[asyncio.Future[None]], turn: asyncio.Future[None]
    ) -> None:
        if turn in line:
            line.remove(turn)
        if not line and self._lines.get(owner) is line:
            del self._lines[owner]

    def _give(self) -> None:
        """To the next owner, who then waits behind all others."""
        while self._lines:
            owner, line = self._lines.popitem(last=False)
            turn = line.popleft()
            if line:
                self._lines[owner] = line
            if not turn.done():
                turn.set_result(None)
                return
        self._n_free += 1
