"""Stored chat completions: what they answered, and what tells their events again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence

import msgspec
from msgspec import structs

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.serve.resolved import Json
from kvasir.serve.state import entries
from kvasir.serve.state.entries import Entry, Page
from kvasir.serve.state.files import DAY_SECONDS
from kvasir.serve.state.kept import drop_progress
from kvasir.serve.state.store import Store
from kvasir.serve.telling import Telling, check_open
from kvasir.tokenizer.messages import ChatMessage

MAX_OPEN = 1_000
"""Stored chats that have not ended, of all keys."""
NOTHING = msgspec.Raw(b"null")


class StillComputed(KvasirError):
    """There is no whole answer yet."""

    code = "in_progress"
    status = 409


class ChatDeleted(KvasirError):
    """Whoever listened hears no more."""

    code = "chat_deleted"
    status = 409


class ChatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one chat completion."""

    messages: tuple[ChatMessage, ...]
    """What was asked."""
    kept: bytes
    """``Kept``."""
    completion: msgspec.Raw = NOTHING
    """JSON of the whole answer; null before its end."""
    events: bytes | None = None
    """MessagePack of what the engine said of it; None before its end, and of a beam search."""

    @property
    def is_done(self) -> bool:
        return bytes(self.completion) != bytes(NOTHING)


class Chats:
    def __init__(self, store: Store, days: int) -> None:
        """They are forgotten ``days`` after they have ended."""
        self.live: dict[str, Telling] = {}
        """Those that this server computes, by their ids."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        """What computes them."""
        self._store = store
        self._days = days

    async def add(
        self,
        chat_id: str,
        owner: bytes,
        model: str,
        record: ChatRecord,
        metadata: Mapping[str, str],
    ) -> None:
        """One that is not done: it does not expire. The oldest answers give way to it. Raises
        CapacityError (429), StorageFull (507)."""
        store, now = self._store, int(self._store.clock())

        def add(db: sqlite3.Connection) -> None:
            value = msgspec.json.encode(record)
            entry = Entry(chat_id, "chat", owner, model, now, None, len(value), value)
            entries.add(db, entry, store.quota)
            entries.describe(db, chat_id, metadata)

        check_open(self.live.values(), owner, MAX_OPEN, "stored chats are computed")
        await store.run(add)

    async def get(self, chat_id: str, owner: bytes) -> ChatRecord:
        """Raises Gone (404)."""
        now = self._store.clock()
        return await self._store.run(
            lambda db: _record(entries.find(db, "chat", chat_id, owner, now))
        )

    async def page(self, owner: bytes, asked: Page) -> tuple[dict[str, bytes], bool]:
        """JSON of those that are done, by their ids, and whether more follow. Raises Gone (404)."""
        now = self._store.clock()

        def find(db: sqlite3.Connection) -> tuple[dict[str, bytes], bool]:
            found, has_more = entries.page(db, "chat", owner, asked, now)
            return {entry.id: bytes(_record(entry).completion) for entry in found}, has_more

        return await self._store.run(find)

    async def open(self) -> dict[str, bytes]:
        """Whose they are that have not ended, by their ids, the oldest first."""
        return await self._store.run(lambda db: entries.lasting(db, "chat"))

    async def load(self, chat_id: str) -> ChatRecord | None:
        """Whoever asks; None when it is gone."""
        entry = await self._store.run(lambda db: entries.any_owner(db, chat_id))
        return None if entry is None else _record(entry)

    async def finish(
        self, chat_id: str, completion: bytes, said: Sequence[TokenEvent] | None
    ) -> None:
        """``said``: all that the engine said, of one that can be told again."""

        def change(db: sqlite3.Connection) -> None:
            entry = entries.any_owner(db, chat_id)
            if entry is None:
                return
            events = None if said is None else msgspec.msgpack.encode(said)
            more = {"completion": msgspec.Raw(completion), "events": events}
            value = msgspec.json.encode(structs.replace(_record(entry), **more))
            drop_progress(db, chat_id, 0)
            expires = int(self._store.clock()) + self._days * DAY_SECONDS
            entries.replace(db, chat_id, value, len(value), expires)

        await self._store.run(change)

    async def update(self, chat_id: str, owner: bytes, metadata: Mapping[str, str]) -> Json:
        """The completion with ``metadata`` in the place of what it had. Raises Gone (404),
        StillComputed (409)."""
        now = self._store.clock()

        def change(db: sqlite3.Connection) -> Json:
            entry = entries.find(db, "chat", chat_id, owner, now)
            record = _record(entry)
            shown: Json = msgspec.json.decode(completed(record))
            shown["metadata"] = dict(metadata)
            raw = msgspec.Raw(msgspec.json.encode(shown))
            value = msgspec.json.encode(structs.replace(record, completion=raw))
            entries.describe(db, chat_id, metadata)
            entries.replace(db, chat_id, value, len(value), entry.expires)
            return shown

        return await self._store.run(change)

    async def delete(self, chat_id: str, owner: bytes) -> None:
        """One that is computed ends. Raises Gone (404)."""
        now = self._store.clock()
        await self._store.run(lambda db: entries.remove(db, "chat", chat_id, owner, now))
        task = self.tasks.get(chat_id)
        if task is not None:
            self.live[chat_id].end(ChatDeleted(f"the chat {chat_id!r} was deleted"))
            task.cancel()

    async def drop(self, chat_id: str) -> None:
        """One that failed."""
        await self._store.run(lambda db: entries.drop(db, chat_id))


def completed(record: ChatRecord) -> msgspec.Raw:
    """Raises StillComputed (409)."""
    if not record.is_done:
        raise StillComputed("the chat is being computed: stream=true tells it as it comes")
    return record.completion


def _record(entry: Entry) -> ChatRecord:
    return msgspec.json.decode(entry.value, type=ChatRecord)
