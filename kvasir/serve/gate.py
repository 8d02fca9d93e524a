"""Where requests wait while the operator pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from kvasir.serve.streams import EventStream


class Gate:
    """Lives in one event loop."""

    def __init__(self, freeze: Callable[[bool], None]) -> None:
        """``freeze``: tells the engine whether to stand still."""
        self.is_frozen = False
        """While it is closed: whether the engine computes nothing."""
        self.waiting: set[EventStream] = set()
        self._freeze = freeze
        self._open = asyncio.Event()
        self._open.set()

    @property
    def is_closed(self) -> bool:
        return not self._open.is_set()

    async def pass_through(self, stream: EventStream) -> None:
        self.waiting.add(stream)
        try:
            await self._open.wait()
        finally:
            self.waiting.discard(stream)

    def close(self, *, freezes: bool) -> None:
        """What comes waits; with ``freezes`` what runs stands still."""
        self._open.clear()
        self._set_frozen(freezes)

    def open(self) -> None:
        """All goes on."""
        self._open.set()
        self._set_frozen(False)

    def _set_frozen(self, is_frozen: bool) -> None:
        if is_frozen != self.is_frozen:
            self.is_frozen = is_frozen
            self._freeze(is_frozen)
