"""Files: uploaded by clients, or written by batches."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Literal

import msgspec

from kvasir.core.errors import CapacityError, RequestError
from kvasir.serve.admission import most_for
from kvasir.serve.state import entries
from kvasir.serve.state.database import StateError
from kvasir.serve.state.entries import Entry, Gone, Page
from kvasir.serve.state.folder import Content
from kvasir.serve.state.store import Store

MAX_UPLOADS = 32
"""Files that arrive at a time."""
PIECE_BYTES = 256 * 1024
"""Written and read at a time."""
MAX_FILENAME = 512
DAY_SECONDS = 24 * 3600

Purpose = Literal[
    "assistants", "batch", "batch_output", "evals", "fine-tune", "user_data", "vision"
]
UPLOADED: tuple[Purpose, ...] = ("assistants", "batch", "evals", "fine-tune", "user_data", "vision")


class File(msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="file"):
    """As clients see it (OpenAI's file object)."""

    id: str
    bytes: int
    created_at: int
    filename: str
    purpose: Purpose
    status: str = "processed"
    expires_at: int | None = None


@dataclass(slots=True)
class _Arriving:
    """Bytes of uploads of one owner that are no entries yet."""

    n_uploads: int = 0
    n_bytes: int = 0


class Files:
    def __init__(self, store: Store, *, max_bytes: int, days: int) -> None:
        """``max_bytes`` of one file; those of batches expire after ``days``."""
        self.store = store
        self.max_bytes = max_bytes
        self._days = days
        self._arriving: dict[bytes, _Arriving] = {}

    @asynccontextmanager
    async def upload(self, owner: bytes) -> AsyncIterator[Upload]:
        """A file that arrives: dropped at the end, unless it was kept. Raises CapacityError (429)
        when too many do, or ``owner`` has no room."""
        n_all = sum(one.n_uploads for one in self._arriving.values())
        arriving = self._arriving.get(owner, _Arriving())
        if n_all >= most_for(arriving.n_uploads + 1, MAX_UPLOADS):
            raise CapacityError(f"{n_all} files arrive: try again in a moment", code="busy")
        self._arriving[owner] = arriving
        arriving.n_uploads += 1
        store, quota, name = self.store, self.store.quota, new_id("file")
        try:
            room = await store.run(lambda db: quota.bytes - entries.used(db, owner).bytes)
            content = await store.on_disk(lambda: store.folder.begin(name))
            upload = Upload(self, name, owner, content, room)
            try:
                yield upload
            finally:
                arriving.n_bytes -= upload.n_bytes
                if not upload.is_kept:
                    await store.on_disk(content.drop)
        finally:
            arriving.n_uploads -= 1
            if not arriving.n_uploads:
                del self._arriving[owner]

    def arrive(self, owner: bytes, n_new: int, n_bytes: int, room: int) -> None:
        """``n_new`` bytes more for an upload, which has then ``n_bytes``. Raises RequestError
        (413), CapacityError (429)."""
        if n_bytes > self.max_bytes:
            raise RequestError(
                f"the file exceeds {self.max_bytes} bytes: split it, or raise --max-file-bytes",
                param="file",
                code="file_too_large",
                status=413,
            )
        arriving = self._arriving[owner]
        arriving.n_bytes += n_new
        if arriving.n_bytes > room:
            raise CapacityError(
                f"there is room for {max(room, 0)} bytes more, {arriving.n_bytes} arrive: delete "
                "files, or raise --state-bytes",
                code="quota_exceeded",
            )

    def made(
        self, name: str, filename: str, purpose: Purpose, n_bytes: int, seconds: int | None
    ) -> File:
        """A file of now, which expires after ``seconds``, or when those of its purpose do."""
        created = int(self.store.clock())
        if seconds is None and purpose in ("batch", "batch_output"):
            seconds = self._days * DAY_SECONDS
        return File(
            id=name,
            bytes=n_bytes,
            created_at=created,
            filename=filename,
            purpose=purpose,
            expires_at=None if seconds is None else created + seconds,
        )

    async def add(self, file: File, owner: bytes) -> None:
        """Its content is there. Raises CapacityError (429)."""
        entry, quota = entry_of(file, owner), self.store.quota
        await self.store.forget(await self.store.run(lambda db: entries.add(db, entry, quota)))

    async def get(self, file_id: str, owner: bytes, param: str | None = None) -> File:
        """Raises Gone (404)."""
        now = self.store.clock()
        entry = await self.store.run(
            lambda db: entries.find(db, "file", file_id, owner, now, param)
        )
        return msgspec.json.decode(entry.value, type=File)

    async def page(self, owner: bytes, asked: Page) -> tuple[list[msgspec.Raw], bool]:
        """JSON of the files of a page, and whether more follow. Raises Gone (404)."""
        now = self.store.clock()
        found, has_more = await self.store.run(
            lambda db: entries.page(db, "file", owner, asked, now)
        )
        return [msgspec.Raw(entry.value) for entry in found], has_more

    async def delete(self, file_id: str, owner: bytes) -> None:
        """Raises Gone (404)."""
        now = self.store.clock()
        await self.store.run(lambda db: entries.remove(db, "file", file_id, owner, now))
        await self.store.forget([file_id])

    def pieces(self, name: str, n_bytes: int | None = None) -> Generator[bytes, None, None]:
        """Of the content of a file, which has ``n_bytes``; each is read where it is asked for.
        Raises Gone (404), StateError when it has others."""
        try:
            content = self.store.folder.content(name).open("rb")
        except FileNotFoundError:  # deleted since somebody asked for it
            raise Gone("file", name) from None
        with content:
            found = os.fstat(content.fileno()).st_size
            if n_bytes is not None and found != n_bytes:
                raise StateError(f"{name} has {found} bytes on disk, and had {n_bytes}: restore it")
            while piece := content.read(PIECE_BYTES):
                yield piece


class Upload:
    """A file that arrives."""

    def __init__(self, files: Files, name: str, owner: bytes, content: Content, room: int) -> None:
        self.n_bytes = 0
        self.is_kept = False
        self._files = files
        self._name = name
        self._owner = owner
        self._content = content
        self._room = room
        self._waiting = bytearray()

    async def write(self, data: bytes) -> None:
        """Raises RequestError (413), CapacityError (429), StorageFull (507)."""
        self.n_bytes += len(data)
        self._files.arrive(self._owner, len(data), self.n_bytes, self._room)
        self._waiting += data
        if len(self._waiting) >= PIECE_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        piece, self._waiting = bytes(self._waiting), bytearray()
        await self._files.store.on_disk(lambda: self._content.write(piece))

    async def keep(self, filename: str, purpose: Purpose, seconds: int | None) -> File:
        """Raises CapacityError (429), StorageFull (507)."""
        await self._flush()
        await self._files.store.on_disk(self._content.keep)
        name = filename[:MAX_FILENAME]
        file = self._files.made(self._name, name, purpose, self.n_bytes, seconds)
        await self._files.add(file, self._owner)
        self.is_kept = True
        return file


def entry_of(file: File, owner: bytes) -> Entry:
    value = msgspec.json.encode(file)
    size = len(value) + file.bytes
    return Entry(
        file.id, "file", owner, file.purpose, file.created_at, file.expires_at, size, value
    )


def new_id(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(16)}"
