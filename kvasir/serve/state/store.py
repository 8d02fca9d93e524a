"""The state of a server: one thread for its database, one for the contents of files."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from kvasir.core.errors import ConfigError, KvasirError
from kvasir.serve.state import entries
from kvasir.serve.state.database import open_database, transaction
from kvasir.serve.state.entries import Quota
from kvasir.serve.state.folder import Folder, TemporaryFolder

logger = logging.getLogger("kvasir.state")

MAX_WAITING = 512
"""Questions to the database, and pieces of contents, that wait for the one before."""
TAKE_SECONDS = 0.2
"""Between two looks whether the server before has given the state up."""
SWEEP_SECONDS = 30.0
"""Between two looks for what has expired."""

Value = TypeVar("Value")
Work = Callable[[sqlite3.Connection], Value]


class StateBusy(KvasirError):
    """The disk of the state is slower than what is asked of it."""

    code = "state_busy"
    status = 503
    retry_after = 1.0


class _Lane:
    """A thread, and a bound on what waits for it."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, name)
        self._n = 0

    async def run(self, work: Callable[[], Value]) -> Value:
        """Raises StateBusy (503)."""
        if self._n >= MAX_WAITING:
            raise StateBusy(f"{self._n} questions wait for the disk of the state: try again")
        self._n += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        finally:
            self._n -= 1

    def close(self) -> None:
        self._thread.shutdown(wait=True)


class Store:
    """Nothing of it is touched by the thread of the event loop, but to give back what was claimed.
    Opened where no loop runs."""

    def __init__(
        self,
        path: Path | None,
        quota: Quota,
        clock: Callable[[], float] = time.time,
        *,
        follows: bool = False,
    ) -> None:
        """``path`` None: nothing outlives the process. ``follows``: another server may have the
        state, and will give it up. Raises ConfigError."""
        self.quota = quota
        self.drafts = Counter[bytes]()
        """Bytes of what is written and does not count yet, by its owners."""
        self.clock = clock
        self.is_lasting = path is not None
        self.folder = TemporaryFolder() if path is None else Folder(path)
        self._rows, self._disk = _Lane("kvasir-state"), _Lane("kvasir-files")
        self._is_mine = self.folder.take()
        try:
            if not self._is_mine and not follows:
                raise ConfigError(
                    f"another server uses the state in {path}: give each its own --state-dir"
                )
            database = None if path is None else self.folder.database
            self._db = open_database(database, self.folder.check_unused)
            if self._is_mine:
                self._tidy()
        except BaseException:
            self.folder.close()
            raise

    def _tidy(self) -> None:
        """What has expired goes, and what a killed server left."""
        with transaction(self._db):
            entries.expire(self._db, self.clock())
            open_batches = entries.lasting(self._db, "batch")
            known = [*entries.ids(self._db, "file"), *open_batches]
        if n_lost := self.folder.keep_only(known):
            logger.info("removed %d contents that no entry knows", n_lost)

    async def mine(self) -> None:
        """Returns when no other server has the state: what others have left is this one's."""
        while not self._is_mine:
            await asyncio.sleep(TAKE_SECONDS)
            self._is_mine = self.folder.take()

    async def run(self, work: Work[Value]) -> Value:
        """What ``work`` returns, in a transaction: all that it writes is kept, or nothing. Raises
        what it raises, StateError (500), StorageFull (507), StateBusy (503)."""

        def inside() -> Value:
            with transaction(self._db):
                return work(self._db)

        return await self._rows.run(inside)

    async def on_disk(self, work: Callable[[], Value]) -> Value:
        """As ``run``, for the contents of files."""
        return await self._disk.run(work)

    async def forget(self, names: list[str]) -> None:
        """Contents of entries that are removed."""
        if names:
            await self.on_disk(lambda: self.folder.remove(names))

    async def sweep(self) -> None:
        """Removes what has expired, again and again, until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self.forget(await self.run(lambda db: entries.expire(db, self.clock())))
            except KvasirError as error:
                logger.error("what has expired could not be removed: %s", error.message)

    def close(self) -> None:
        """After everybody."""
        self._rows.close()
        self._disk.close()
        self._db.close()
        self.folder.close()
