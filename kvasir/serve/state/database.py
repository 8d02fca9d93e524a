"""The SQLite database of the state: its schema, its version, and whether it can be trusted."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kvasir.core.errors import ConfigError, KvasirError

APPLICATION_ID = 0x4B565352
"""Marks a database as ours (SQLite's ``application_id``)."""
VERSION = 4
"""Of the schema. Another one is refused: nothing is read by guessing."""
SCHEMA = """
CREATE TABLE entries (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of creation
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    owner BLOB NOT NULL,
    label TEXT NOT NULL,                    -- what lists are narrowed by: a purpose, a model
    created INTEGER NOT NULL,               -- Unix time, seconds
    expires INTEGER,
    n_bytes INTEGER NOT NULL,               -- of value, and of what else belongs to it
    value BLOB NOT NULL                     -- JSON
);
CREATE INDEX entries_of ON entries (owner, kind, seq);
CREATE INDEX entries_end ON entries (expires) WHERE expires IS NOT NULL;
CREATE TABLE lines (                        -- of batches that are not done
    batch TEXT NOT NULL REFERENCES entries (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,                -- in the file, from 1
    custom_id TEXT NOT NULL,
    place BLOB NOT NULL,                    -- orders lines with equal beginnings together
    request BLOB NOT NULL,                  -- resolved, as MessagePack
    status INTEGER,                         -- of HTTP; NULL until there is an answer
    answer BLOB                             -- JSON
);
CREATE UNIQUE INDEX lines_of ON lines (batch, number);
CREATE INDEX lines_left ON lines (batch, place, number) WHERE status IS NULL;
CREATE INDEX lines_done ON lines (batch, status);
CREATE TABLE progress (                     -- what the engine said of answers that are not done
    seq INTEGER PRIMARY KEY,
    entry TEXT NOT NULL REFERENCES entries (id) ON DELETE CASCADE,
    line INTEGER NOT NULL,                  -- of a batch; else 0
    events BLOB NOT NULL                    -- MessagePack
);
CREATE INDEX progress_of ON progress (entry, line);
CREATE TABLE parts (                        -- of entries: what is large of them, in pieces
    seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of the pieces
    entry TEXT NOT NULL REFERENCES entries (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    data BLOB NOT NULL
);
CREATE INDEX parts_of ON parts (entry, name, seq);
CREATE TABLE metadata (                     -- of entries that are found by it
    entry TEXT NOT NULL REFERENCES entries (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (entry, key)
) WITHOUT ROWID;
CREATE TABLE items (                        -- of conversations
    seq INTEGER PRIMARY KEY AUTOINCREMENT,  -- their order
    conversation TEXT NOT NULL REFERENCES entries (id) ON DELETE CASCADE,
    id TEXT NOT NULL,
    value BLOB NOT NULL                     -- JSON
);
CREATE UNIQUE INDEX items_of ON items (conversation, id);
CREATE INDEX items_in ON items (conversation, seq);
CREATE TABLE used (owner BLOB PRIMARY KEY, n_entries INTEGER, n_bytes INTEGER) WITHOUT ROWID;
CREATE TRIGGER entries_added AFTER INSERT ON entries BEGIN
    INSERT INTO used VALUES (new.owner, 1, new.n_bytes) ON CONFLICT (owner)
    DO UPDATE SET n_entries = n_entries + 1, n_bytes = n_bytes + new.n_bytes;
END;
CREATE TRIGGER entries_removed AFTER DELETE ON entries BEGIN
    UPDATE used SET n_entries = n_entries - 1, n_bytes = n_bytes - old.n_bytes
    WHERE owner = old.owner;
    DELETE FROM used WHERE owner = old.owner AND n_entries = 0;
END;
CREATE TRIGGER entries_changed AFTER UPDATE OF n_bytes ON entries BEGIN
    UPDATE used SET n_bytes = n_bytes + new.n_bytes - old.n_bytes WHERE owner = new.owner;
END;
"""
SETTINGS = (
    "journal_mode = WAL",
    "synchronous = NORMAL",
    "foreign_keys = ON",
    "trusted_schema = OFF",
    "secure_delete = FAST",
)
WAIT_SECONDS = 5.0
"""For a backup that reads the database meanwhile."""


class StateError(KvasirError):
    """The state could not be read or written."""

    code = "state_failed"


class StorageFull(StateError):
    """The disk of the state is full."""

    code = "storage_full"
    status = 507


def open_database(
    path: Path | None, may_make: Callable[[], None] = lambda: None
) -> sqlite3.Connection:
    """The database at ``path``, made if it is not there; None is one in memory.

    Raises ConfigError when it is damaged, of another version or not ours, and what ``may_make``
    does, which is asked before one is made.
    """
    if path is None:
        return _opened(_connect(":memory:"), Path(), may_make)
    try:
        if not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        db = _connect(str(path))
        try:
            return _opened(db, path, may_make)
        except BaseException:
            db.close()
            raise
    except (sqlite3.DatabaseError, OSError) as error:
        raise ConfigError(
            f"the state in {path} is damaged ({error}): restore a copy of its folder, or move it "
            "away to begin anew"
        ) from None


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )


def _opened(db: sqlite3.Connection, path: Path, may_make: Callable[[], None]) -> sqlite3.Connection:
    """Transactions are begun by hand. With WAL and ``synchronous = NORMAL`` a commit survives the
    death of the process; a machine that loses its power may lose the last, and no more."""
    version = _version(db)  # before anything is set: another program's database stays as it is
    is_new = version == (0, 0) and not _tables(db)
    if is_new:
        may_make()
    else:
        _check_whose(path, *version)
    for setting in SETTINGS:
        db.execute(f"PRAGMA {setting}")
    if is_new:
        return _made(db)
    _check(db)
    return db


def _version(db: sqlite3.Connection) -> tuple[int, int]:
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(application), int(version)


def _tables(db: sqlite3.Connection) -> set[tuple[str, str]]:
    """With indexes and triggers: their names, and how they were made."""
    made = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%'"
    return set(db.execute(made).fetchall())


def _made(db: sqlite3.Connection) -> sqlite3.Connection:
    """All or nothing: whoever dies meanwhile leaves an empty database."""
    db.executescript(
        f"BEGIN IMMEDIATE;{SCHEMA}PRAGMA application_id = {APPLICATION_ID};"
        f"PRAGMA user_version = {VERSION};COMMIT;"
    )
    return db


def _check_whose(path: Path, application: int, version: int) -> None:
    if application != APPLICATION_ID:
        raise ConfigError(f"{path} is a database of another program: choose another --state-dir")
    if version != VERSION:
        raise ConfigError(
            f"the state in {path} has version {version}, this is version {VERSION}: use the server "
            "that wrote it, or another --state-dir"
        )


def _check(db: sqlite3.Connection) -> None:
    with closing(_made(_connect(":memory:"))) as whole:
        if _tables(db) != _tables(whole):
            raise sqlite3.DatabaseError("its tables are not those of its version")
    (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(str(found).splitlines()[-1])


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Everything inside is kept, or nothing. Raises StateError, StorageFull."""
    try:
        with closing(db.execute("BEGIN IMMEDIATE")):
            pass
        try:
            yield
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        raise _failure(error) from error


def _failure(error: sqlite3.Error) -> StateError:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
        return StorageFull("the disk of the state is full: make room, or delete files and answers")
    return StateError(f"the state cannot be used: {error}")
