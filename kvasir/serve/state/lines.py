"""The lines of a batch that is not done. Each function works inside a transaction of its caller."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from kvasir.serve.state import entries
from kvasir.serve.state.entries import Quota

BEGIN = (b"", 0)
"""Before the first line."""

Place = tuple[bytes, int]
"""Where a line stands in the order of computing: its beginning, and its number."""


class BatchLine(msgspec.Struct, frozen=True):
    """One request of a batch."""

    number: int
    """In the file, from 1."""
    custom_id: str
    place: bytes
    """Lines with equal beginnings are neighbours."""
    request: bytes
    """A ``Kept``, encoded."""


class AnsweredLine(msgspec.Struct, frozen=True):
    number: int
    custom_id: str
    request: bytes
    status: int | None
    """Of HTTP; None where nobody answered it."""
    answer: bytes | None
    """JSON."""


class LineCounts(msgspec.Struct, frozen=True):
    total: int
    completed: int
    failed: int


def add(db: sqlite3.Connection, batch: str, lines: Sequence[BatchLine], quota: Quota) -> list[str]:
    """They count in the bytes of the batch until it ends: in memory they are what there is of it.
    Ids of the answers that made room. Raises CapacityError (429)."""
    n_bytes = sum(len(line.request) for line in lines)
    entry = entries.any_owner(db, batch)
    if entry is None:
        return []
    removed = entries.make_room(db, entry.owner, 0, n_bytes, quota)
    db.executemany(
        "INSERT INTO lines (batch, number, custom_id, place, request) VALUES (?, ?, ?, ?, ?)",
        [(batch, x.number, x.custom_id, x.place, x.request) for x in lines],
    )
    _count(db, batch, n_bytes)
    return removed


def following(db: sqlite3.Connection, batch: str, place: Place, limit: int) -> list[BatchLine]:
    """The next lines without an answer after ``place``."""
    rows = db.execute(
        "SELECT number, custom_id, place, request FROM lines WHERE batch = ? AND status IS NULL "
        "AND (place, number) > (?, ?) ORDER BY place, number LIMIT ?",
        (batch, *place, limit),
    ).fetchall()
    return [BatchLine(*row) for row in rows]


def answer(db: sqlite3.Connection, batch: str, number: int, status: int, body: bytes) -> bool:
    """Whether it was the first answer: there is one for each line. What was kept of its progress
    goes."""
    found = db.execute(
        "UPDATE lines SET status = ?, answer = ? WHERE batch = ? AND number = ? AND status IS NULL",
        (status, body, batch, number),
    )
    db.execute("DELETE FROM progress WHERE entry = ? AND line = ?", (batch, number))
    if found.rowcount:
        _count(db, batch, len(body))
    return found.rowcount > 0


def counts(db: sqlite3.Connection, batch: str) -> LineCounts:
    rows = db.execute(
        "SELECT status IS NOT NULL, status < 400, count(*) FROM lines WHERE batch = ? "
        "GROUP BY 1, 2",
        (batch,),
    ).fetchall()
    completed = sum(n for is_done, is_well, n in rows if is_done and is_well)
    failed = sum(n for is_done, is_well, n in rows if is_done and not is_well)
    return LineCounts(sum(n for *_, n in rows), completed, failed)


def answered(db: sqlite3.Connection, batch: str, after: int, limit: int) -> list[AnsweredLine]:
    """The next lines of the file after number ``after``, answered or not."""
    rows = db.execute(
        "SELECT number, custom_id, request, status, answer FROM lines "
        "WHERE batch = ? AND number > ? ORDER BY number LIMIT ?",
        (batch, after, limit),
    ).fetchall()
    return [AnsweredLine(*row) for row in rows]


def clear(db: sqlite3.Connection, batch: str) -> None:
    """All lines, and their progress."""
    (n_bytes,) = db.execute(
        "SELECT coalesce(sum(length(request) + coalesce(length(answer), 0)), 0) FROM lines "
        "WHERE batch = ?",
        (batch,),
    ).fetchone()
    db.execute("DELETE FROM lines WHERE batch = ?", (batch,))
    db.execute("DELETE FROM progress WHERE entry = ?", (batch,))
    _count(db, batch, -n_bytes)


def _count(db: sqlite3.Connection, batch: str, n_bytes: int) -> None:
    """So many bytes more are the batch's."""
    db.execute("UPDATE entries SET n_bytes = n_bytes + ? WHERE id = ?", (n_bytes, batch))
