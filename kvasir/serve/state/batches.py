"""Batches: files of requests that are answered some time."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import structs
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.serve.state import entries, lines
from kvasir.serve.state.entries import Entry, Page
from kvasir.serve.state.files import DAY_SECONDS, File, Files, entry_of, new_id
from kvasir.serve.state.lines import LineCounts
from kvasir.serve.state.store import Store

logger = logging.getLogger("kvasir.state")

Status = Literal[
    "validating",
    "failed",
    "in_progress",
    "finalizing",
    "completed",
    "expired",
    "cancelling",
    "cancelled",
]
OPEN: tuple[Status, ...] = ("validating", "in_progress", "finalizing", "cancelling")


class LineError(msgspec.Struct, frozen=True):
    """What is wrong with the input."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None
    """From 1."""


class LineErrors(msgspec.Struct, frozen=True, tag_field="object", tag="list"):
    data: tuple[LineError, ...] = ()


class RequestCounts(msgspec.Struct, frozen=True):
    total: int = 0
    completed: int = 0
    failed: int = 0


class BatchUsage(msgspec.Struct, frozen=True):
    """Tokens of all answers."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int


class StoredBatch(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="batch"):
    """As clients see it (OpenAI's batch object)."""

    id: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    expires_at: int
    status: Status = "validating"
    model: str | None = None
    errors: LineErrors | None = None
    output_file_id: str | None = None
    error_file_id: str | None = None
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    expired_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    request_counts: RequestCounts = RequestCounts()
    usage: BatchUsage | None = None
    metadata: dict[str, str] | None = None


class BatchRecord(msgspec.Struct, frozen=True, kw_only=True):
    """With what clients do not see."""

    batch: StoredBatch
    output_seconds: int | None
    """After which its files expire; None: when others do."""
    output_id: str
    error_id: str
    """Of its files, drawn once: who is killed while writing them writes the same again."""
    end: Status = "completed"
    """What follows ``finalizing``."""


class Batches:
    def __init__(self, store: Store, files: Files, days: int) -> None:
        """They are forgotten ``days`` after they have ended."""
        self.store = store
        self.files = files
        self._days = days
        self.tell: Callable[[StoredBatch], None] = lambda batch: None
        """Called with a batch that is new or cancelled."""

    async def create(
        self,
        owner: bytes,
        file: File,
        *,
        endpoint: str,
        window: tuple[str, int],
        output_seconds: int | None,
        metadata: dict[str, str] | None,
    ) -> StoredBatch:
        """``window``: as it is written, and seconds. The content of ``file`` stays for the batch,
        also when the file is deleted, and counts as its own until it ends. Raises CapacityError
        (429)."""
        now = int(self.store.clock())
        batch = StoredBatch(
            id=new_id("batch"),
            endpoint=endpoint,
            input_file_id=file.id,
            completion_window=window[0],
            created_at=now,
            expires_at=now + window[1],
            metadata=metadata,
        )
        record = BatchRecord(
            batch=batch,
            output_seconds=output_seconds,
            output_id=new_id("file"),
            error_id=new_id("file"),
        )
        value = msgspec.json.encode(record)
        size = len(value) + file.bytes
        entry = Entry(batch.id, "batch", owner, endpoint, now, None, size, value)
        store = self.store
        await store.on_disk(lambda: store.folder.share(file.id, batch.id))
        try:
            await store.forget(await store.run(lambda db: entries.add(db, entry, store.quota)))
        except BaseException:
            await store.forget([batch.id])
            raise
        self.tell(batch)
        return batch

    async def get(self, batch_id: str, owner: bytes) -> StoredBatch:
        """Raises Gone (404)."""
        now = self.store.clock()

        def find(db: sqlite3.Connection) -> StoredBatch:
            return _shown(db, entries.find(db, "batch", batch_id, owner, now))

        return await self.store.run(find)

    async def page(self, owner: bytes, asked: Page) -> tuple[list[StoredBatch], bool]:
        """Raises Gone (404)."""
        now = self.store.clock()

        def find(db: sqlite3.Connection) -> tuple[list[StoredBatch], bool]:
            found, has_more = entries.page(db, "batch", owner, asked, now)
            return [_shown(db, entry) for entry in found], has_more

        return await self.store.run(find)

    async def open_ids(self) -> list[str]:
        """Of those that have not ended, the oldest first."""

        def find(db: sqlite3.Connection) -> list[str]:
            found = ((name, entries.any_owner(db, name)) for name in entries.ids(db, "batch"))
            return [name for name, entry in found if entry and _is_open(entry)]

        return await self.store.run(find)

    async def load(self, batch_id: str) -> tuple[bytes, BatchRecord] | None:
        """Owner and record, whoever asks; None when it is gone."""
        entry = await self.store.run(lambda db: entries.any_owner(db, batch_id))
        return None if entry is None else (entry.owner, _record(entry))

    async def cancel(self, batch_id: str, owner: bytes) -> StoredBatch:
        """Asked again, it says the same. Raises Gone (404), RequestError (409) when it has ended
        otherwise."""
        now = int(self.store.clock())

        def change(db: sqlite3.Connection) -> StoredBatch:
            entry = entries.find(db, "batch", batch_id, owner, now)
            status = _record(entry).batch.status
            if status in ("validating", "in_progress"):
                more = {"status": "cancelling", "cancelling_at": now}
                entry = _changed(db, entry, lambda record: _with(record, **more), None)
            elif status not in ("cancelling", "cancelled"):
                raise RequestError(
                    f"the batch is {status}: it cannot be cancelled any more",
                    code="batch_ended",
                    status=409,
                )
            return _shown(db, entry)

        batch = await self.store.run(change)
        if batch.status == "cancelling":
            self.tell(batch)
        return batch

    async def change(
        self, batch_id: str, statuses: tuple[Status, ...], **more: Any
    ) -> BatchRecord | None:
        """Sets fields of the batch, if it is in one of ``statuses``: whoever cancels it meanwhile
        is not overruled."""

        def change(db: sqlite3.Connection) -> BatchRecord | None:
            entry = entries.any_owner(db, batch_id)
            if entry is None or _record(entry).batch.status not in statuses:
                return None
            return _record(_changed(db, entry, lambda record: _with(record, **more), None))

        return await self.store.run(change)

    async def finalize(self, batch_id: str, end: Status) -> BatchRecord | None:
        """The batch with its last counts: nothing is answered any more, its files follow."""
        now = int(self.store.clock())

        def change(db: sqlite3.Connection) -> BatchRecord | None:
            entry = entries.any_owner(db, batch_id)
            if entry is None:
                return None
            record = _record(entry)
            if record.batch.status == "finalizing":
                return record
            if record.batch.status == "cancelling":
                return _record(_changed(db, entry, lambda x: structs.replace(x, end=end), None))
            done = {"status": "finalizing", "finalizing_at": now}
            changed = _changed(
                db, entry, lambda x: structs.replace(_with(x, **done), end=end), None
            )
            return _record(changed)

        return await self.store.run(change)

    async def finish(
        self, batch_id: str, end: Status, files: list[File], usage: BatchUsage | None, **more: Any
    ) -> None:
        """The last status, with ``files`` whose contents are there; lines are forgotten."""
        now = int(self.store.clock())
        ids = {file.id for file in files}

        def change(db: sqlite3.Connection) -> None:
            entry = entries.any_owner(db, batch_id)
            if entry is None:
                return
            record, found = _record(entry), lines.counts(db, batch_id)
            for file in files:
                entries.insert(db, entry_of(file, entry.owner))
            done = {
                "status": end,
                f"{end}_at": now,
                "output_file_id": record.output_id if record.output_id in ids else None,
                "error_file_id": record.error_id if record.error_id in ids else None,
                "usage": usage,
                "request_counts": _counts(found),
                **more,
            }
            lines.clear(db, batch_id)
            _changed(
                db, entry, lambda record: _with(record, **done), now + self._days * DAY_SECONDS
            )

        await self.store.run(change)
        await self.store.forget([batch_id])


def _is_open(entry: Entry) -> bool:
    """One that cannot be read holds no other up."""
    try:
        return _record(entry).batch.status in OPEN
    except msgspec.MsgspecError as error:
        logger.error("batch %s is left as it is: %s", entry.id, error)
        return False


def _record(entry: Entry) -> BatchRecord:
    return msgspec.json.decode(entry.value, type=BatchRecord)


def _with(record: BatchRecord, **more: Any) -> BatchRecord:
    return structs.replace(record, batch=structs.replace(record.batch, **more))


def _changed(
    db: sqlite3.Connection,
    entry: Entry,
    change: Callable[[BatchRecord], BatchRecord],
    expires: int | None,
) -> Entry:
    value = msgspec.json.encode(change(_record(entry)))
    n_bytes = entry.n_bytes + len(value) - len(entry.value)
    if expires is not None:  # its lines and its input are gone
        n_bytes = len(value)
    entries.replace(db, entry.id, value, n_bytes, expires)
    return replace(entry, value=value, n_bytes=n_bytes, expires=expires)


def _shown(db: sqlite3.Connection, entry: Entry) -> StoredBatch:
    """With the counts of now."""
    batch = _record(entry).batch
    if batch.status not in OPEN or batch.status == "validating":
        return batch
    return structs.replace(batch, request_counts=_counts(lines.counts(db, entry.id)))


def _counts(found: LineCounts) -> RequestCounts:
    return RequestCounts(found.total, found.completed, found.failed)
