"""Sparse progress: now and then, what the engine said of answers that are kept goes to disk.

What a killed server had computed since the last time is computed again.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.serve.continued import RunLog
from kvasir.serve.state.kept import ENDS, add_progress, progress
from kvasir.serve.state.store import Store

logger = logging.getLogger("kvasir.state")

FLUSH_SECONDS = 0.25
"""Of computing may be lost."""

Fresh = list[tuple[str, int, list[TokenEvent]]]


class SparseProgress:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._logs: dict[tuple[str, int], RunLog] = {}
        self._turn = asyncio.Lock()

    async def load(self, entry_id: str, line: int = 0) -> RunLog:
        """What is known of an answer."""
        events, ends = await self._store.run(
            lambda db: (progress(db, entry_id, line), [] if line else progress(db, entry_id, ENDS))
        )
        log = RunLog(events, len(events))
        log.ask_end(event.id for event in ends)
        return log

    async def ask_end(self, entry_id: str, choices: Iterable[int]) -> None:
        """The reasoning of ``choices`` is to end: until their engine has said where, who goes on
        asks for it again. Raises StateError."""
        log = self._logs.get((entry_id, 0))
        if log is None or not log.ask_end(choices) or not self._store.is_lasting:
            return
        asked = [TokenEvent(choice) for choice in sorted(log.ends)]
        await self.flush()
        await self._store.run(lambda db: add_progress(db, entry_id, ENDS, asked))

    @contextmanager
    def keeping(self, log: RunLog, entry_id: str, line: int = 0) -> Iterator[None]:
        """``log`` goes to disk now and then, until its answer does."""
        self._logs[entry_id, line], log.keep = log, self.try_flush
        try:
            yield
        finally:
            del self._logs[entry_id, line]

    async def flush(self) -> None:
        """Raises StateError."""
        async with self._turn:
            found = [(key, log, log.fresh()) for key, log in self._logs.items() if log.fresh()]
            if not found or not self._store.is_lasting:
                return
            fresh = [(*key, events) for key, _, events in found]
            await self._store.run(lambda db: _write(db, fresh))
            for _, log, events in found:
                log.n_kept += len(events)

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            await self.try_flush()

    async def try_flush(self) -> None:
        """What cannot be kept is computed again: nobody ends for it."""
        try:
            await self.flush()
        except KvasirError as error:
            logger.error("progress could not be kept: %s", error.message)


def _write(db: sqlite3.Connection, fresh: Fresh) -> None:
    for entry_id, line, events in fresh:
        add_progress(db, entry_id, line, events)
