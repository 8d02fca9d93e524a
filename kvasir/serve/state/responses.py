"""Stored responses: what they answered, and the conversation that the next goes on with."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import structs

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent
from kvasir.serve.dialects.items import answered, shown_items
from kvasir.serve.resolved import Json
from kvasir.serve.state import entries
from kvasir.serve.state.conversations import Conversations
from kvasir.serve.state.entries import Entry
from kvasir.serve.state.files import DAY_SECONDS
from kvasir.serve.state.kept import drop_progress
from kvasir.serve.state.store import Store
from kvasir.serve.telling import Telling, check_open
from kvasir.tokenizer.messages import ChatMessage

MAX_OPEN = 1_000
"""Responses in the background that have not ended, of all keys."""


class Cancelled(KvasirError):
    """Whoever listened hears no more."""

    code = "response_cancelled"
    status = 409


ENDED_WELL = ("completed", "incomplete")


class ResponseRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What is kept of one response."""

    response: msgspec.Raw
    """JSON, as its client was answered last."""
    messages: tuple[ChatMessage, ...]
    """The conversation without instructions, as it was before the answer."""
    n_before: int = 0
    """Of ``messages``, those of the responses before."""
    conversation: str | None = None
    """The id of what it belongs to."""
    items_before: tuple[msgspec.Raw, ...] = ()
    """Of the conversation, as it was when this was asked: as JSON."""
    is_done: bool = True
    kept: bytes | None = None
    """``Kept``, of one in the background."""
    events: bytes | None = None
    """MessagePack of what the engine said of it, once it is complete."""

    def shown(self) -> Json:
        found: Json = msgspec.json.decode(self.response)
        return found

    def turn(self) -> list[Json]:
        """What its conversation is given; nothing unless it went well."""
        shown = self.shown()
        if shown["status"] not in ENDED_WELL:
            return []
        suffix = shown["id"].removeprefix("resp_")
        return [*shown_items(self.messages[self.n_before :], suffix), *shown["output"]]

    def said(self) -> tuple[ChatMessage, ...]:
        """The conversation with the answer. Raises RequestError (400) while there is none."""
        shown = self.shown()
        if shown["status"] not in ENDED_WELL:
            raise RequestError(
                f"the response {shown['id']!r} is {shown['status']}: go on from one that is "
                "complete",
                param="previous_response_id",
            )
        return (*self.messages, *answered(shown["output"]))


class Responses:
    def __init__(self, store: Store, conversations: Conversations, days: int) -> None:
        """They are forgotten ``days`` after they have ended."""
        self.live: dict[str, Telling] = {}
        """Those in the background that have not ended, by their ids."""
        self.begin: Callable[[str], None] = lambda response_id: None
        """Called with the id of one in the background."""
        self.stop: Callable[[str], bool] = lambda response_id: False
        """Called with the id of one that was cancelled or deleted: whether it was computed."""
        self._store = store
        self._conversations = conversations
        self._days = days

    async def add(self, response_id: str, owner: bytes, model: str, record: ResponseRecord) -> None:
        """The oldest give way to it. One that is not done does not expire. Raises CapacityError
        (429), StorageFull (507)."""
        store, now = self._store, int(self._store.clock())
        expires = self._end(now) if record.is_done else None

        def add(db: sqlite3.Connection) -> None:
            value = msgspec.json.encode(record)
            size = len(value)
            entry = Entry(response_id, "response", owner, model, now, expires, size, value)
            entries.add(db, entry, store.quota)
            if record.is_done:
                self._tell(db, owner, record)

        if not record.is_done:
            check_open(self.live.values(), owner, MAX_OPEN, "responses wait in the background")
        await store.run(add)
        if not record.is_done:
            self.live.setdefault(response_id, Telling(owner))
            self.begin(response_id)

    async def tell(self, owner: bytes, record: ResponseRecord) -> None:
        """Of one that is not stored: its conversation alone is given what was said."""
        await self._store.run(lambda db: self._tell(db, owner, record))

    def _tell(self, db: sqlite3.Connection, owner: bytes, record: ResponseRecord) -> None:
        if record.conversation is not None:
            self._conversations.told(db, record.conversation, owner, record.turn())

    async def get(self, response_id: str, owner: bytes, param: str | None = None) -> ResponseRecord:
        """Raises Gone (404)."""
        now = self._store.clock()

        def find(db: sqlite3.Connection) -> ResponseRecord:
            return _record(entries.find(db, "response", response_id, owner, now, param))

        return await self._store.run(find)

    async def load(self, response_id: str) -> ResponseRecord | None:
        """Whoever asks; None when it is gone."""
        entry = await self._store.run(lambda db: entries.any_owner(db, response_id))
        return None if entry is None else _record(entry)

    async def open(self) -> dict[str, bytes]:
        """Whose they are that have not ended, by their ids, the oldest first."""
        return await self._store.run(lambda db: entries.lasting(db, "response"))

    async def finish(
        self, response_id: str, response: bytes, said: Sequence[TokenEvent] | None
    ) -> None:
        """``said``: all that the engine said, of one that can be told again. Whoever cancelled it
        meanwhile is not overruled."""

        def change(db: sqlite3.Connection) -> None:
            entry = entries.any_owner(db, response_id)
            if entry is None or (record := _record(entry)).is_done:
                return
            events = None if said is None else msgspec.msgpack.encode(said)
            self._end_as(db, entry, record, response=msgspec.Raw(response), events=events)

        await self._store.run(change)

    async def cancel(self, response_id: str, owner: bytes) -> Json:
        """Asked again, or of one that has ended, it says the same. Raises Gone (404), RequestError
        (400)."""
        now = self._store.clock()

        def change(db: sqlite3.Connection) -> Json:
            entry = entries.find(db, "response", response_id, owner, now)
            record = _record(entry)
            if record.kept is None:
                raise RequestError(
                    "only a response of background: true can be cancelled: close the connection "
                    "of another",
                    code="not_in_background",
                )
            if record.is_done:
                return record.shown()
            shown = {**record.shown(), "status": "cancelled"}
            self._end_as(db, entry, record, response=msgspec.Raw(msgspec.json.encode(shown)))
            return shown

        shown = await self._store.run(change)
        if shown["status"] == "cancelled":
            self._stop(response_id)
        return shown

    async def delete(self, response_id: str, owner: bytes) -> None:
        """Raises Gone (404)."""
        now = self._store.clock()
        await self._store.run(lambda db: entries.remove(db, "response", response_id, owner, now))
        self._stop(response_id)

    def _stop(self, response_id: str) -> None:
        telling = self.live.get(response_id)
        if telling is not None:
            telling.end(Cancelled(f"the response {response_id!r} was cancelled or deleted"))
            if not self.stop(response_id):
                del self.live[response_id]

    def _end_as(
        self, db: sqlite3.Connection, entry: Entry, record: ResponseRecord, **more: Any
    ) -> None:
        record = structs.replace(record, is_done=True, **more)
        value = msgspec.json.encode(record)
        self._tell(db, entry.owner, record)
        drop_progress(db, entry.id, 0)
        expires = self._end(int(self._store.clock()))
        entries.replace(db, entry.id, value, len(value), expires)

    def _end(self, now: int) -> int:
        return now + self._days * DAY_SECONDS


def _record(entry: Entry) -> ResponseRecord:
    return msgspec.json.decode(entry.value, type=ResponseRecord)
