"""Conversations: items in their order, to which responses add what was said."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Mapping, Sequence

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.resolved import Json
from kvasir.serve.state import entries
from kvasir.serve.state.entries import Entry, Gone, Page
from kvasir.serve.state.files import DAY_SECONDS
from kvasir.serve.state.store import Store

MAX_BYTES = 16 * 2**20
"""Of the items of one: those of the longest context that any model reads, and more."""
MAX_ITEMS = 10_000
Rows = Sequence[tuple[str, bytes]]
"""Items by their ids, as JSON."""
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_parts = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


def read_item(data: bytes | msgspec.Raw) -> Json:
    """An item. Log probabilities stay as they are written: nobody here reads them, and an answer
    has so many that it would take tens of milliseconds."""
    return {
        name: _read_content(value) if name == "content" else msgspec.json.decode(value)
        for name, value in _fields.decode(data).items()
    }


def _read_content(content: msgspec.Raw) -> object:
    if bytes(memoryview(content)[:1]) != b"[":
        return msgspec.json.decode(content)
    return [
        {name: x if name == "logprobs" else msgspec.json.decode(x) for name, x in part.items()}
        for part in _parts.decode(content)
    ]


class StoredConversation(
    msgspec.Struct, frozen=True, kw_only=True, tag_field="object", tag="conversation"
):
    """As clients see it (OpenAI's conversation object)."""

    id: str
    created_at: int
    metadata: dict[str, str] = {}


class Conversations:
    def __init__(self, store: Store, days: int) -> None:
        """Each is forgotten ``days`` after its last change."""
        self._store = store
        self._days = days

    async def create(
        self, owner: bytes, items: Sequence[Json], metadata: Mapping[str, str]
    ) -> StoredConversation:
        """Raises CapacityError (429), StorageFull (507)."""
        store, now, rows = self._store, int(self._store.clock()), await _written(items)
        name = f"conv_{secrets.token_hex(16)}"
        made = StoredConversation(id=name, created_at=now, metadata=dict(metadata))

        def create(db: sqlite3.Connection) -> None:
            value = msgspec.json.encode(made)
            entry = Entry(name, "conversation", owner, "", now, self._end(), len(value), value)
            entries.add(db, entry, store.quota)
            self._append(db, entry, rows)

        await store.run(create)
        return made

    async def get(self, name: str, owner: bytes) -> StoredConversation:
        """Raises Gone (404)."""
        return await self._store.run(lambda db: _shown(self._find(db, name, owner)))

    async def update(
        self, name: str, owner: bytes, metadata: Mapping[str, str]
    ) -> StoredConversation:
        """Raises Gone (404)."""

        def change(db: sqlite3.Connection) -> StoredConversation:
            entry = self._find(db, name, owner)
            made = msgspec.structs.replace(_shown(entry), metadata=dict(metadata))
            value = msgspec.json.encode(made)
            n_bytes = entry.n_bytes - len(entry.value) + len(value)
            entries.replace(db, name, value, n_bytes, self._end())
            return made

        return await self._store.run(change)

    async def delete(self, name: str, owner: bytes) -> None:
        """With its items. Raises Gone (404)."""
        now = self._store.clock()
        await self._store.run(lambda db: entries.remove(db, "conversation", name, owner, now))

    async def append(self, name: str, owner: bytes, items: Sequence[Json]) -> None:
        """Raises Gone (404), RequestError (400), CapacityError (429)."""
        rows = await _written(items)
        await self._store.run(lambda db: self._append(db, self._find(db, name, owner), rows))

    async def items(self, name: str, owner: bytes, param: str | None = None) -> list[bytes]:
        """All of them, for ``read_item``. Raises Gone (404)."""

        def find(db: sqlite3.Connection) -> list[bytes]:
            self._find(db, name, owner, param)
            rows = db.execute(
                "SELECT value FROM items WHERE conversation = ? ORDER BY seq", (name,)
            )
            return [row[0] for row in rows.fetchall()]

        return await self._store.run(find)

    async def page(self, name: str, owner: bytes, asked: Page) -> tuple[list[bytes], bool]:
        """Of its items, for ``read_item``, and whether more follow. Raises Gone (404)."""
        way, order = ("<", "DESC") if asked.newest_first else (">", "ASC")

        def find(db: sqlite3.Connection) -> tuple[list[bytes], bool]:
            self._find(db, name, owner)
            where: str = "conversation = ?"
            values: tuple[str | int, ...] = (name,)
            if asked.after is not None:
                place = _place(db, name, asked.after, "after")
                where, values = f"{where} AND seq {way} ?", (name, place)
            rows = db.execute(
                f"SELECT value FROM items WHERE {where} ORDER BY seq {order} LIMIT ?",
                (*values, asked.limit + 1),
            ).fetchall()
            return [row[0] for row in rows[: asked.limit]], len(rows) > asked.limit

        return await self._store.run(find)

    async def item(self, name: str, owner: bytes, item_id: str) -> bytes:
        """For ``read_item``. Raises Gone (404)."""

        def find(db: sqlite3.Connection) -> bytes:
            self._find(db, name, owner)
            place = _place(db, name, item_id)
            found = db.execute("SELECT value FROM items WHERE seq = ?", (place,)).fetchone()
            return bytes(found[0])

        return await self._store.run(find)

    async def delete_item(self, name: str, owner: bytes, item_id: str) -> StoredConversation:
        """Raises Gone (404)."""

        def change(db: sqlite3.Connection) -> StoredConversation:
            entry = self._find(db, name, owner)
            place = _place(db, name, item_id)
            (value,) = db.execute("SELECT value FROM items WHERE seq = ?", (place,)).fetchone()
            db.execute("DELETE FROM items WHERE seq = ?", (place,))
            entries.replace(db, name, entry.value, entry.n_bytes - len(value), self._end())
            return _shown(entry)

        return await self._store.run(change)

    def told(self, db: sqlite3.Connection, name: str, owner: bytes, rows: Rows) -> None:
        """Adds what was said in a response, whatever the quota is; one that was deleted meanwhile
        gets nothing. Inside a transaction of its caller."""
        entry = entries.any_owner(db, name)
        if entry is not None and entry.owner == owner:
            self._insert(db, entry, rows)

    def _append(self, db: sqlite3.Connection, entry: Entry, rows: Rows) -> None:
        size = _n_bytes(rows)
        (n,) = db.execute(
            "SELECT count(*) FROM items WHERE conversation = ?", (entry.id,)
        ).fetchone()
        if entry.n_bytes + size > MAX_BYTES or n + len(rows) > MAX_ITEMS:
            raise RequestError(
                f"the conversation would have {n + len(rows)} items and {entry.n_bytes + size} "
                f"bytes, at most {MAX_ITEMS} and {MAX_BYTES} are kept: begin another",
                param="items",
                code="conversation_too_long",
            )
        entries.make_room(db, entry.owner, 0, size, self._store.quota)
        self._insert(db, entry, rows)

    def _insert(self, db: sqlite3.Connection, entry: Entry, rows: Rows) -> None:
        db.executemany(
            "INSERT INTO items (conversation, id, value) VALUES (?, ?, ?)",
            ((entry.id, *row) for row in rows),
        )
        size = entry.n_bytes + _n_bytes(rows)
        entries.replace(db, entry.id, entry.value, size, self._end())

    def _find(
        self, db: sqlite3.Connection, name: str, owner: bytes, param: str | None = None
    ) -> Entry:
        return entries.find(db, "conversation", name, owner, self._store.clock(), param)

    def _end(self) -> int:
        return int(self._store.clock()) + self._days * DAY_SECONDS


async def _written(items: Sequence[Json]) -> Rows:
    """Beside both the event loop and the thread of the database: up to the bytes of a body."""
    return await asyncio.to_thread(rows_of, items) if items else ()


def rows_of(items: Sequence[Json]) -> Rows:
    return [(item["id"], msgspec.json.encode(item)) for item in items]


def _n_bytes(rows: Rows) -> int:
    return sum(len(value) for _, value in rows)


def _place(db: sqlite3.Connection, name: str, item_id: str, param: str | None = None) -> int:
    row = db.execute(
        "SELECT seq FROM items WHERE conversation = ? AND id = ?", (name, item_id)
    ).fetchone()
    if row is None:
        raise Gone("item", item_id, param)
    return int(row[0])


def _shown(entry: Entry) -> StoredConversation:
    return msgspec.json.decode(entry.value, type=StoredConversation)
