"""The events of an answer that is computed, for whoever listens, from where they want."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from math import inf

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.serve.admission import most_for
from kvasir.serve.parts import Parts
from kvasir.serve.streams import SILENCE_SECONDS

AT_A_TIME = 64
"""Events that are given together."""


def check_open(tellings: Collection[Telling], owner: bytes, bound: int, what: str) -> None:
    """Raises CapacityError (429) when one more of ``owner`` would be too many."""
    n_own = sum(telling.owner == owner for telling in tellings)
    most = most_for(n_own + 1, bound)
    if len(tellings) >= most:
        raise CapacityError(f"{len(tellings)} {what}, the limit is {most}: try again later")


class Telling:
    """Kept as long as the answer is computed."""

    def __init__(self, owner: bytes = b"") -> None:
        self.owner = owner
        """Whose the answer is."""
        self.events: list[bytes] = []
        self.is_running = False
        """Its turn has come."""
        self.answer = b""
        """The whole of it, once it has ended well."""
        self._is_over = False
        self._error: KvasirError | None = None
        self._news = asyncio.Event()

    def tell(self, events: Sequence[Parts]) -> None:
        self.events += [b"".join(event) for event in events]
        self._wake()

    def end(self, error: KvasirError | None = None) -> None:
        """No event follows; ``error`` is for who still listens."""
        if not self._is_over:
            self._is_over, self._error = True, error
            self._wake()

    def _wake(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def over(self) -> bytes:
        """The whole answer, at its end. Raises what it ended with."""
        while not self._is_over:
            await self._news.wait()
        if self._error is not None:
            raise self._error
        return self.answer

    async def follow(
        self, number: int, silence: float = SILENCE_SECONDS
    ) -> AsyncGenerator[list[Parts], None]:
        """The events from ``number`` on; none after ``silence`` seconds without one. Raises what it
        ended with."""
        while True:
            if found := self.events[number : number + AT_A_TIME]:
                number += len(found)
                yield [[event] for event in found]
            elif self._is_over:
                if self._error is not None:
                    raise self._error
                return
            else:
                try:
                    async with asyncio.timeout(None if silence == inf else silence):
                        await self._news.wait()
                except TimeoutError:
                    yield []
