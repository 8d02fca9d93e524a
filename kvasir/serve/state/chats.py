"""Stored chat completions: what they answered, and what tells their events again."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex

import msgspec
from msgspec import structs

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.serve.continued import log_pieces
from kvasir.serve.parts import Parts
from kvasir.serve.state import entries, parts
from kvasir.serve.state.entries import Entry, Gone, Page
from kvasir.serve.state.files import DAY_SECONDS
from kvasir.serve.state.kept import drop_progress
from kvasir.serve.state.said import read_said, write_said
from kvasir.serve.state.store import Store
from kvasir.serve.telling import Telling, check_open
from kvasir.tokenizer.messages import ChatMessage

MAX_OPEN = 1_000
"""Stored chats that have not ended, of all keys."""
COMPLETION, KEPT, EVENTS = "completion", "kept", "events"
"""Parts: JSON of the whole answer; ``Kept``; what the engine said, as ``log_pieces``."""


class StillComputed(KvasirError):
    """There is no whole answer yet."""

    code = "in_progress"
    status = 409


class ChatDeleted(KvasirError):
    """Whoever listened hears no more."""

    code = "chat_deleted"
    status = 409


class ChatRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one chat completion, beside its parts."""

    completion: str = COMPLETION
    """The part that is the whole answer: of one whose metadata were changed another."""
    n_bytes: int = 0
    """Of the whole answer; 0 before its end."""
    has_events: bool = False
    """Whether they can be told again: not before its end, and not those of a beam search."""

    @property
    def is_done(self) -> bool:
        return self.n_bytes > 0


class Chats:
    def __init__(self, store: Store, days: int) -> None:
        """They are forgotten ``days`` after they have ended."""
        self.live: dict[str, Telling] = {}
        """Those that this server computes, or is about to, by their ids."""
        self.tasks: dict[str, asyncio.Task[None]] = {}
        """What computes them."""
        self._store = store
        self._days = days

    async def add(
        self,
        chat_id: str,
        owner: bytes,
        model: str,
        messages: Sequence[ChatMessage],
        kept: bytes,
        metadata: Mapping[str, str],
    ) -> None:
        """One that is not done: it does not expire, and counts as computed from now on. The oldest
        answers give way to it. Raises CapacityError (429), StorageFull (507)."""
        check_open(self.live.values(), owner, MAX_OPEN, "stored chats are computed")
        self.live[chat_id] = Telling(owner)  # counts while it is written, too
        try:
            await self._store_open(chat_id, owner, model, messages, kept, metadata)
        except BaseException:
            self.live.pop(chat_id, None)
            raise

    async def _store_open(
        self,
        chat_id: str,
        owner: bytes,
        model: str,
        messages: Sequence[ChatMessage],
        kept: bytes,
        metadata: Mapping[str, str],
    ) -> None:
        store, now = self._store, int(self._store.clock())
        value = msgspec.json.encode(ChatRecord())
        found = {**await write_said(messages), KEPT: kept}
        size = len(value) + sum(map(len, found.values()))
        entry = Entry(chat_id, "chat", owner, model, now, None, size, value)
        await parts.add(store, entry, found, lambda db: entries.describe(db, chat_id, metadata))

    async def part(
        self, chat_id: str, owner: bytes, name: str | Callable[[ChatRecord], str]
    ) -> tuple[ChatRecord, Parts]:
        """With the record that it belongs to. Raises Gone (404)."""
        now = self._store.clock()

        def find(db: sqlite3.Connection) -> ChatRecord:
            return _record(entries.find(db, "chat", chat_id, owner, now))

        return await parts.read(self._store, chat_id, name, find)

    async def whole(self, chat_id: str, owner: bytes) -> Parts:
        """JSON of the answer. Raises Gone (404), StillComputed (409)."""

        record, found = await self.part(chat_id, owner, lambda record: record.completion)
        if not record.is_done:
            raise StillComputed("the chat is being computed: stream=true tells it as it comes")
        return found

    async def messages(
        self, chat_id: str, owner: bytes, asked: Page
    ) -> tuple[list[tuple[str, ChatMessage]], bool]:
        """Those of a page that it answered, with their ids, and whether more follow. Raises Gone
        (404)."""
        now = self._store.clock()
        await self._store.run(lambda db: entries.find(db, "chat", chat_id, owner, now))
        return await read_said(self._store, chat_id, asked)

    async def page(self, owner: bytes, asked: Page) -> tuple[dict[str, Parts], bool]:
        """JSON of those that are done, by their ids, and whether more follow. Raises Gone (404)."""
        now = self._store.clock()
        found, has_more = await self._store.run(
            lambda db: entries.page(db, "chat", owner, asked, now)
        )
        told: dict[str, Parts] = {}
        n_bytes = 0
        for entry in found:
            n_bytes += _record(entry).n_bytes
            if told and n_bytes > entries.PAGE_BYTES:
                return told, True
            try:
                told[entry.id] = await self.whole(entry.id, owner)
            except Gone:  # meanwhile
                continue
        return told, has_more

    async def open(self) -> dict[str, bytes]:
        """Whose they are that have not ended, by their ids, the oldest first."""
        return await self._store.run(lambda db: entries.lasting(db, "chat"))

    async def load(self, chat_id: str) -> tuple[ChatRecord, bytes] | None:
        """With its ``Kept``, whoever asks; None when it is gone."""
        find = entries.any_owner
        entry, kept = await parts.read(self._store, chat_id, KEPT, lambda db: find(db, chat_id))
        return None if entry is None else (_record(entry), b"".join(kept))

    async def finish(
        self, chat_id: str, completion: bytes, said: Sequence[TokenEvent] | None
    ) -> None:
        """``said``: all that the engine said, of one that can be told again."""
        n_more = await parts.write(self._store, chat_id, COMPLETION, parts.cut(completion))
        n_more += await parts.write(self._store, chat_id, EVENTS, log_pieces(said or ()))

        def change(db: sqlite3.Connection) -> None:
            entry = entries.any_owner(db, chat_id)
            if entry is None:
                return
            drop_progress(db, chat_id, 0)
            record = ChatRecord(n_bytes=len(completion), has_events=said is not None)
            expires = int(self._store.clock()) + self._days * DAY_SECONDS
            _change(db, entry, record, n_more, expires)

        await self._store.run(change)

    async def update(self, chat_id: str, owner: bytes, metadata: Mapping[str, str]) -> bytes:
        """The completion with ``metadata`` in the place of what it had. Raises Gone (404),
        StillComputed (409)."""
        whole = await self.whole(chat_id, owner)
        now, shown = self._store.clock(), _with(b"".join(whole), metadata)
        name = f"{COMPLETION}-{token_hex(8)}"
        await parts.write(self._store, chat_id, name, parts.cut(shown))

        def change(db: sqlite3.Connection) -> ChatRecord:
            """The record before."""
            entry = entries.find(db, "chat", chat_id, owner, now)
            before = _record(entry)
            record = structs.replace(before, completion=name, n_bytes=len(shown))
            entries.describe(db, chat_id, metadata)
            _change(db, entry, record, len(shown) - before.n_bytes, entry.expires)
            return before

        before = await self._store.run(change)
        await parts.forget(self._store, chat_id, before.completion)
        return shown

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


def _record(entry: Entry) -> ChatRecord:
    return msgspec.json.decode(entry.value, type=ChatRecord)


def _change(
    db: sqlite3.Connection, entry: Entry, record: ChatRecord, n_more: int, expires: int | None
) -> None:
    """``n_more``: bytes of its parts."""
    value = msgspec.json.encode(record)
    n_bytes = entry.n_bytes + len(value) - len(entry.value) + n_more
    entries.replace(db, entry.id, value, n_bytes, expires)


def _with(completion: bytes, metadata: Mapping[str, str]) -> bytes:
    """Of the rest nothing is read."""
    shown = msgspec.json.decode(completion, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**shown, "metadata": dict(metadata)})
