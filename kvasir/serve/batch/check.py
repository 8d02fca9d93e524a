"""The input of a batch: every line is read and resolved before any is computed."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

from kvasir.core.errors import CapacityError
from kvasir.serve.batch.line import InvalidLine, LineReader
from kvasir.serve.service import Service
from kvasir.serve.state import lines
from kvasir.serve.state.batches import LineError, StoredBatch
from kvasir.serve.state.lines import BatchLine

MAX_LINES = 50_000
MAX_ERRORS = 100
"""Told of one batch."""
READ_BYTES = 2**20
"""Of a file at a time, in whole lines."""


class InputCheck:
    """Of one batch; ``stopped`` is set when it is cancelled."""

    def __init__(
        self, service: Service, batch: StoredBatch, owner: bytes, stopped: asyncio.Event
    ) -> None:
        self.errors: list[LineError] = []
        self._batch = batch
        self._limit = service.options.max_body_bytes
        self._n_lines = 0
        self._reader = LineReader(service, batch.endpoint, owner)
        self._stopped = stopped
        self._store = service.state.store
        self._has_room = True

    @property
    def model(self) -> str | None:
        """Of the lines, where they have one."""
        models = self._reader.models
        return next(iter(models)) if len(models) == 1 else None

    async def run(self) -> None:
        """Adds the lines to the batch, until there are ``errors``. Raises Unavailable, EngineDown,
        StateError."""
        some = read_lines(self._store.folder.content(self._batch.id), self._limit)
        try:
            while (found := await self._store.on_disk(lambda: next(some, None))) is not None:
                await self._add([await self._read(*numbered) for numbered in found])
                if self._is_over:
                    break
        finally:
            some.close()
        if not self._n_lines:
            self.errors.append(LineError("empty_file", "the file has no lines"))

    @property
    def _is_over(self) -> bool:
        has_too_many = self._n_lines > MAX_LINES or len(self.errors) >= MAX_ERRORS
        return has_too_many or self._stopped.is_set() or not self._has_room

    async def _read(self, number: int, data: bytes) -> BatchLine | None:
        if self._is_over:
            return None
        self._n_lines += 1
        if self._n_lines > MAX_LINES:
            message = f"a batch has at most {MAX_LINES} lines: split it"
            self.errors = [LineError("too_many_lines", message, None, number)]
            return None
        await asyncio.sleep(0)
        try:
            return await self._reader.read(number, data)
        except InvalidLine as error:
            self.errors.append(error.error)
            return None

    async def _add(self, read: list[BatchLine | None]) -> None:
        batch_id, found = self._batch.id, [line for line in read if line is not None]
        if self.errors or not found:
            return
        store, quota = self._store, self._store.quota
        try:
            await store.forget(await store.run(lambda db: lines.add(db, batch_id, found, quota)))
        except CapacityError as error:
            self.errors = [LineError(error.code, error.message, None, found[0].number)]
            self._has_room = False


def read_lines(path: Path, limit: int) -> Generator[list[tuple[int, bytes]], None, None]:
    """Some lines at a time with their numbers from 1, empty ones left out; one of more than
    ``limit`` bytes is the last, and cut. Raises OSError."""
    with path.open("rb") as file:
        some: list[tuple[int, bytes]] = []
        size, number = 0, 0
        while line := file.readline(limit + 1):
            number, size = number + 1, size + len(line)
            if line.strip():
                some.append((number, line))
            if size >= READ_BYTES or len(line) > limit:
                yield some
                some, size = [], 0
            if len(line) > limit:
                return
        yield some
