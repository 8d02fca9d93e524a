"""Large parts of entries: they lie in pieces, and are read a piece at a time, so that who asks for
a part holds up nobody who asks for something else for longer than a piece takes.

Functions of a database work inside a transaction of their caller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeVar

from msgspec import structs

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.serve.admission import most_for
from kvasir.serve.parts import Parts
from kvasir.serve.state import entries
from kvasir.serve.state.entries import Entry
from kvasir.serve.state.store import StateBusy, Store, Work

PIECE_BYTES = 2**18
"""Read in a fraction of a millisecond. Who cuts by other borders keeps to about as much."""

DRAFT_SECONDS = 600
"""After which an entry goes whose parts nobody writes any more: its server was killed."""

Value = TypeVar("Value")


def cut(data: bytes) -> list[bytes]:
    """Into pieces."""
    return [data[i : i + PIECE_BYTES] for i in range(0, len(data), PIECE_BYTES)]


def put(db: sqlite3.Connection, entry_id: str, name: str, pieces: Sequence[bytes]) -> int:
    """In the place of what the part was; how many bytes more these are."""
    (before,) = db.execute(
        "SELECT coalesce(sum(length(data)), 0) FROM parts WHERE entry = ? AND name = ?",
        (entry_id, name),
    ).fetchone()
    db.execute("DELETE FROM parts WHERE entry = ? AND name = ?", (entry_id, name))
    db.executemany(
        "INSERT INTO parts (entry, name, data) VALUES (?, ?, ?)",
        ((entry_id, name, piece) for piece in pieces),
    )
    return sum(map(len, pieces)) - int(before)


def places(db: sqlite3.Connection, entry_id: str, name: str) -> list[int]:
    """Of the pieces of a part: of one that is put again others."""
    rows = db.execute(
        "SELECT seq FROM parts WHERE entry = ? AND name = ? ORDER BY seq", (entry_id, name)
    ).fetchall()
    return [row[0] for row in rows]


def piece(db: sqlite3.Connection, place: int) -> bytes | None:
    """None: it has gone."""
    row = db.execute("SELECT data FROM parts WHERE seq = ?", (place,)).fetchone()
    return None if row is None else row[0]


def whole(db: sqlite3.Connection, entry_id: str, name: str) -> bytes:
    """All of a part, for who can wait for it in a transaction."""
    rows = db.execute(
        "SELECT data FROM parts WHERE entry = ? AND name = ? ORDER BY seq", (entry_id, name)
    ).fetchall()
    return b"".join(row[0] for row in rows)


async def read(
    store: Store,
    entry_id: str,
    name: str | Callable[[Value], str],
    find: Work[Value],
    span: slice = slice(None),
) -> tuple[Value, Parts]:
    """What ``find`` says, which is asked with the first piece and may be what the part's name
    follows from, and the part's pieces, or those of
    ``span``: none where it is not there. Raises what ``find`` raises."""

    def begin(db: sqlite3.Connection) -> tuple[Value, list[int], bytes | None]:
        found = find(db)
        at = places(db, entry_id, name if isinstance(name, str) else name(found))[span]
        return found, at, piece(db, at[0]) if at else None

    while True:
        found, at, first = await store.run(begin)
        whole: Parts = [] if first is None else [first]
        for place in at[1:]:
            data = await store.run(partial(piece, place=place))
            if data is None:  # another was put meanwhile
                break
            whole.append(data)
        if len(whole) == len(at):
            return found, whole


async def write(store: Store, entry_id: str, name: str, pieces: Iterable[bytes]) -> int:
    """A part that nobody reads yet, a piece at a time, of an entry that goes meanwhile nothing; its
    bytes."""
    await forget(store, entry_id, name)
    n_bytes = 0
    for piece in pieces:
        await store.run(partial(_add, values=(entry_id, name, piece, entry_id)))
        n_bytes += len(piece)
    return n_bytes


async def add(
    store: Store, entry: Entry, found: Mapping[str, bytes], also: Work[None] = lambda db: None
) -> None:
    """``entry`` with its parts, and what ``also`` writes: all that, or nothing. Large ones are
    written a piece at a time, of what nobody finds before; its bytes count once it is whole, and
    nothing gives way to it before. Those of all that are written at a time are no more than may be
    kept. Raises CapacityError (429), StorageFull (507)."""

    def whole(db: sqlite3.Connection) -> None:
        entries.add(db, entry, store.quota)
        for name, data in found.items():
            put(db, entry.id, name, cut(data))
        also(db)

    def publish(db: sqlite3.Connection) -> None:
        entries.make_room(db, entry.owner, 0, entry.n_bytes, store.quota)
        if not entries.publish(db, entry):
            raise StateBusy("the state was not written in time: try again")
        also(db)

    if sum(map(len, found.values())) <= PIECE_BYTES:
        return await store.run(whole)
    expires = int(store.clock()) + DRAFT_SECONDS
    draft = structs.replace(entry, kind="draft", expires=expires, n_bytes=0)
    with _drafted(store, entry):
        await store.run(lambda db: entries.insert(db, draft))
        try:
            for name, data in found.items():
                await write(store, entry.id, name, cut(data))
            await store.run(publish)
        except BaseException:
            with suppress(KvasirError):
                await store.run(lambda db: entries.give_up(db, entry.id))
            raise


@contextmanager
def _drafted(store: Store, entry: Entry) -> Iterator[None]:
    """Counts it among what is written. Raises CapacityError (429)."""
    drafts, quota, owner = store.drafts, store.quota, entry.owner
    drafts[owner] += entry.n_bytes
    try:
        own, every = drafts[owner], drafts.total()
        most = None if quota.all_bytes is None else most_for(own, quota.all_bytes)
        if own > quota.bytes or (most is not None and every > most):
            raise CapacityError(
                f"{own} bytes of this key are written at a time, {every} of all keys: try again "
                "when they are stored, or raise --state-bytes",
                code="quota_exceeded",
            )
        yield
    finally:
        drafts[owner] -= entry.n_bytes
        if not drafts[owner]:
            del drafts[owner]


async def forget(store: Store, entry_id: str, name: str) -> None:
    """A part that nobody reads any more."""
    while await store.run(lambda db: _drop_first(db, entry_id, name)):
        continue


def _add(db: sqlite3.Connection, values: tuple[str, str, bytes, str]) -> None:
    db.execute(
        "INSERT INTO parts (entry, name, data) SELECT ?, ?, ? "
        "WHERE EXISTS (SELECT 1 FROM entries WHERE id = ?)",
        values,
    )


def _drop_first(db: sqlite3.Connection, entry_id: str, name: str) -> bool:
    """Whether there was a piece."""
    found = db.execute(
        "DELETE FROM parts WHERE seq = "
        "(SELECT seq FROM parts WHERE entry = ? AND name = ? ORDER BY seq LIMIT 1)",
        (entry_id, name),
    )
    return found.rowcount > 0
