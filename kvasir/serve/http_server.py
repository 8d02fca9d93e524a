"""uvicorn's server, but for what the server around it does itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import uvicorn

DATE_SECONDS = 1.0
"""Between two looks at the clock for the date that answers have."""


class HttpServer(uvicorn.Server):
    """Without signal handling of its own, which ends with the signal instead of status 0, and
    without ten looks a second whether it shall end: ``end`` tells."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()

    def end(self) -> None:
        """What is under way is still answered."""
        self.should_exit = True
        self._ended.set()

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), DATE_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
