"""What an engine is asked beside requests: whichever lives answers, and nobody waits for one that
sleeps."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from kvasir.core.errors import KvasirError
from kvasir.serve.messages import (
    AskHoldings,
    CacheReset,
    HoldingsAnswer,
    ResetPrefixCache,
    ToEngine,
)
from kvasir.timing.records import Holding

Value = TypeVar("Value")


class Questions:
    """Lives in one event loop; not thread-safe."""

    def __init__(self, send: Callable[[ToEngine], None]) -> None:
        """``send``: to the engine that lives, if there is one."""
        self._send = send
        self._holdings: asyncio.Future[tuple[Holding, ...]] | None = None
        self._resets: deque[asyncio.Future[None]] = deque()
        """Of each reset that no engine has done; disks outlive engines."""

    @property
    def are_open(self) -> bool:
        """Whether somebody waits for the engine."""
        return self._holdings is not None or any(not x.done() for x in self._resets)

    def ask_again(self) -> None:
        """Another engine lives, which was asked nothing."""
        for _ in self._resets:
            self._send(ResetPrefixCache())
        if self._holdings is not None:
            self._send(AskHoldings())

    def sleep(self) -> None:
        """No engine lives until it is needed: none has anything, and the next begins with what is
        left to be reset."""
        self.answer_holdings(HoldingsAnswer(()))
        for asked in self._resets:
            _done(asked)

    def end(self, error: KvasirError) -> None:
        """Nobody will answer any more."""
        asked, self._holdings = self._holdings, None
        if asked is not None:
            _fail(asked, error)
        while self._resets:
            _fail(self._resets.popleft(), error)

    async def holdings(self) -> tuple[Holding, ...]:
        """What running choices hold; who asks meanwhile gets the same answer. Raises what ``end``
        was given."""
        if self._holdings is None:
            self._holdings = asyncio.get_running_loop().create_future()
            self._send(AskHoldings())
        return await asyncio.shield(self._holdings)

    def answer_holdings(self, answer: HoldingsAnswer) -> None:
        asked, self._holdings = self._holdings, None
        if asked is not None:
            asked.set_result(answer.holdings)

    def begin_reset(self, *, is_alive: bool) -> asyncio.Future[None]:
        """Done when an engine has forgotten all that was cached before. ``is_alive``: whether there
        is one, else those that wait already are one reset."""
        if is_alive or not self._resets:
            self._resets.append(asyncio.get_running_loop().create_future())
            self._send(ResetPrefixCache())
        return self._resets[-1]

    def answer_reset(self, _: CacheReset) -> None:
        if self._resets:
            _done(self._resets.popleft())


def _done(asked: asyncio.Future[None]) -> None:
    if not asked.done():
        asked.set_result(None)


def _fail(asked: asyncio.Future[Value], error: KvasirError) -> None:
    if not asked.done():
        asked.set_exception(error)
        asked.exception()  # who asked may be gone
