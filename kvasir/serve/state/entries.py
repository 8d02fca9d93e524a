"""The entries of the state: whose they are, how many there may be, when they end.

Each function works inside a transaction of its caller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from typing import Literal

import msgspec

from kvasir.core.errors import CapacityError, RequestError
from kvasir.serve.admission import most_for

Kind = Literal["file", "batch", "response", "chat", "conversation", "item", "repeat", "draft"]
GIVING_WAY: tuple[Kind, ...] = ("response", "chat", "repeat")
"""Answers, the oldest of which make room for the next."""
PAGE_BYTES = 4 * 2**20
"""Of the values of a page, unless the first is larger: what follows is on the next."""
_COLUMNS = "id, kind, owner, label, created, expires, n_bytes, value"


class Entry(msgspec.Struct, frozen=True):
    id: str
    kind: Kind
    owner: bytes
    label: str
    """What lists are narrowed by: the purpose of a file, the model of an answer; of a
    repeat, the id of the answer."""
    created: int
    """Unix time, seconds."""
    expires: int | None
    n_bytes: int
    """Of ``value``, and of what else belongs to it."""
    value: bytes
    """JSON."""


class Quota(msgspec.Struct, frozen=True):
    """Most entries and bytes, of one owner and of all; beyond the latter there is a reserve."""

    entries: int
    bytes: int
    all_entries: int | None = None
    all_bytes: int | None = None


class Used(msgspec.Struct, frozen=True):
    entries: int
    bytes: int


class Page(msgspec.Struct, frozen=True):
    """What a list asks for."""

    limit: int
    after: str | None = None
    """The id of the last entry of the page before."""
    newest_first: bool = True
    label: str | None = None
    metadata: tuple[tuple[str, str], ...] = ()
    """What each of them must have."""
    ended: bool = False
    """Whether what does not expire yet is left out: it is being made."""


class Gone(RequestError):
    """There is no such entry, or it is another's: nobody learns which."""

    def __init__(self, kind: Kind, entry_id: str, param: str | None = None) -> None:
        super().__init__(
            f"there is no {kind} {entry_id[:128]!r} of this key: it may have expired or been "
            "deleted",
            param=param,
            code="not_found",
            status=404,
        )


def used(db: sqlite3.Connection, owner: bytes | None = None) -> Used:
    """Of ``owner``; None: of all."""
    where, values = ("", ()) if owner is None else (" WHERE owner = ?", (owner,))
    row = db.execute(
        f"SELECT coalesce(sum(n_entries), 0), coalesce(sum(n_bytes), 0) FROM used{where}", values
    ).fetchone()
    return Used(*row)


def add(db: sqlite3.Connection, entry: Entry, quota: Quota) -> list[str]:
    """Ids of the answers that made room. Raises CapacityError (429)."""
    removed = make_room(db, entry.owner, 1, entry.n_bytes, quota)
    insert(db, entry)
    return removed


def insert(db: sqlite3.Connection, entry: Entry) -> None:
    """Whatever the quota is: for what follows from an entry that was taken."""
    db.execute(
        f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            entry.id,
            entry.kind,
            entry.owner,
            entry.label,
            entry.created,
            entry.expires,
            entry.n_bytes,
            entry.value,
        ),
    )


def publish(db: sqlite3.Connection, entry: Entry) -> bool:
    """A draft is ``entry`` from now on; whether it was still there."""
    found = db.execute(
        "UPDATE entries SET kind = ?, expires = ?, n_bytes = ? WHERE id = ? AND kind = 'draft'",
        (entry.kind, entry.expires, entry.n_bytes, entry.id),
    )
    return found.rowcount > 0


def make_room(
    db: sqlite3.Connection, owner: bytes, n_entries: int, n_bytes: int, quota: Quota
) -> list[str]:
    """For what ``owner`` adds; ids of the answers that were removed for it. Raises CapacityError
    (429)."""
    removed: list[str] = []
    while (message := _excess(db, owner, n_entries, n_bytes, quota)) is not None:
        found = _oldest(db, owner, quota)
        if found is None:
            raise CapacityError(message, code="quota_exceeded")
        db.execute("DELETE FROM entries WHERE id = ?", (found,))
        removed.append(found)
    return removed


def _excess(
    db: sqlite3.Connection, owner: bytes, n_entries: int, n_bytes: int, quota: Quota
) -> str | None:
    """What there is too much of, and the remedy."""
    own, every = used(db, owner), used(db)
    n, size = own.entries + n_entries, own.bytes + n_bytes
    most = quota.all_entries and most_for(n, quota.all_entries)
    most_bytes = quota.all_bytes and most_for(size, quota.all_bytes)
    bounds = (
        ("entries", n, quota.entries, "--state-entries"),
        ("bytes", size, quota.bytes, "--state-bytes"),
        ("entries of all keys", every.entries + n_entries, most, "--state-entries"),
        ("bytes of all keys", every.bytes + n_bytes, most_bytes, "--state-bytes"),
    )
    for what, n, most, option in bounds:
        if most is not None and n > most:
            return (
                f"this would make {n} stored {what}, the limit is {most}: delete some, or raise "
                f"{option}"
            )
    return None


def _oldest(db: sqlite3.Connection, owner: bytes, quota: Quota) -> str | None:
    """The answer that gives way, of those that have ended: the owner's oldest; with a bound of
    all, that of who has most."""
    kinds = ", ".join(f"'{kind}'" for kind in GIVING_WAY)
    who: bytes | None = owner
    if quota.all_entries is not None:
        row = db.execute(
            f"SELECT owner FROM entries WHERE kind IN ({kinds}) AND expires IS NOT NULL "
            "GROUP BY owner ORDER BY count(*) DESC, min(seq) LIMIT 1"
        ).fetchone()
        who = None if row is None else row[0]
    row = db.execute(
        f"SELECT id FROM entries WHERE owner = ? AND kind IN ({kinds}) AND expires IS NOT NULL "
        "ORDER BY seq LIMIT 1",
        (who,),
    ).fetchone()
    return None if row is None else str(row[0])


def find(
    db: sqlite3.Connection,
    kind: Kind,
    entry_id: str,
    owner: bytes,
    now: float,
    param: str | None = None,
) -> Entry:
    """Raises Gone (404)."""
    row = db.execute(
        f"SELECT {_COLUMNS} FROM entries WHERE id = ? AND kind = ? AND owner = ? "
        "AND (expires IS NULL OR expires > ?)",
        (entry_id, kind, owner, now),
    ).fetchone()
    if row is None:
        raise Gone(kind, entry_id, param)
    return Entry(*row)


def any_owner(db: sqlite3.Connection, entry_id: str) -> Entry | None:
    """For the server itself, until it has been removed."""
    row = db.execute(f"SELECT {_COLUMNS} FROM entries WHERE id = ?", (entry_id,)).fetchone()
    return None if row is None else Entry(*row)


def page(
    db: sqlite3.Connection, kind: Kind, owner: bytes, asked: Page, now: float
) -> tuple[list[Entry], bool]:
    """The entries of a page, fewer than its limit where they are large, and whether more follow.
    Raises Gone (404) for ``after``."""
    way, order = ("<", "DESC") if asked.newest_first else (">", "ASC")
    where = ["kind = ?", "owner = ?", "(expires IS NULL OR expires > ?)"]
    values: list[object] = [kind, owner, now]
    if asked.label is not None:
        where.append("label = ?")
        values.append(asked.label)
    for key, value in asked.metadata:
        where.append(
            "EXISTS (SELECT 1 FROM metadata AS m WHERE m.entry = entries.id AND m.key = ? "
            "AND m.value = ?)"
        )
        values += [key, value]
    if asked.ended:
        where.append("expires IS NOT NULL")
    if asked.after is not None:
        row = db.execute(
            "SELECT seq FROM entries WHERE id = ? AND kind = ? AND owner = ?",
            (asked.after, kind, owner),
        ).fetchone()
        if row is None:
            raise Gone(kind, asked.after, "after")
        where.append(f"seq {way} ?")
        values.append(row[0])
    found = db.execute(
        f"SELECT {_COLUMNS} FROM entries WHERE {' AND '.join(where)} ORDER BY seq {order} LIMIT ?",
        (*values, asked.limit + 1),
    )
    with closing(found) as rows:
        return _fitting((Entry(*row) for row in rows), asked.limit)


def _fitting(following: Iterable[Entry], limit: int) -> tuple[list[Entry], bool]:
    """Those that one page has, and whether more follow."""
    found: list[Entry] = []
    n_bytes = 0
    for entry in following:
        n_bytes += len(entry.value)
        if len(found) == limit or (found and n_bytes > PAGE_BYTES):
            return found, True
        found.append(entry)
    return found, False


def replace(
    db: sqlite3.Connection, entry_id: str, value: bytes, n_bytes: int, expires: int | None
) -> bool:
    """Whether it was still there."""
    found = db.execute(
        "UPDATE entries SET value = ?, n_bytes = ?, expires = ? WHERE id = ?",
        (value, n_bytes, expires, entry_id),
    )
    return found.rowcount > 0


def describe(db: sqlite3.Connection, entry_id: str, metadata: Mapping[str, str]) -> None:
    """From now on the entry is found by ``metadata``."""
    db.execute("DELETE FROM metadata WHERE entry = ?", (entry_id,))
    rows = [(entry_id, key, value) for key, value in metadata.items()]
    db.executemany("INSERT INTO metadata VALUES (?, ?, ?)", rows)


def remove(db: sqlite3.Connection, kind: Kind, entry_id: str, owner: bytes, now: float) -> None:
    """With what an Idempotency-Key kept of it. Raises Gone (404)."""
    find(db, kind, entry_id, owner, now)
    db.execute("DELETE FROM entries WHERE id = ?", (entry_id,))
    db.execute(
        "DELETE FROM entries WHERE owner = ? AND kind = 'repeat' AND label = ?", (owner, entry_id)
    )


def give_up(db: sqlite3.Connection, entry_id: str) -> None:
    """A draft, or what was to be computed and nobody has begun; not what is done: it may have
    been published a moment ago, and its conversation told of it."""
    db.execute(
        "DELETE FROM entries WHERE id = ? AND (kind = 'draft' OR expires IS NULL)", (entry_id,)
    )


def drop(db: sqlite3.Connection, entry_id: str) -> None:
    """Whoever's it is; it may be gone."""
    db.execute("DELETE FROM entries WHERE id = ?", (entry_id,))


def expire(db: sqlite3.Connection, now: float) -> list[str]:
    """Removes what has ended; its ids."""
    rows = db.execute("SELECT id FROM entries WHERE expires <= ?", (now,)).fetchall()
    db.execute("DELETE FROM entries WHERE expires <= ?", (now,))
    return [row[0] for row in rows]


def ids(db: sqlite3.Connection, kind: Kind) -> list[str]:
    """Of all owners, in the order of creation."""
    rows = db.execute("SELECT id FROM entries WHERE kind = ? ORDER BY seq", (kind,)).fetchall()
    return [row[0] for row in rows]


def lasting(db: sqlite3.Connection, kind: Kind) -> dict[str, bytes]:
    """Owners of those that do not expire, by their ids, in the order of creation."""
    rows = db.execute(
        "SELECT id, owner FROM entries WHERE kind = ? AND expires IS NULL ORDER BY seq", (kind,)
    ).fetchall()
    return dict(rows)
