"""A state that cannot be trusted: of others, of another version, damaged, cut off."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from pathlib import Path

import pytest

from kvasir.core.errors import ConfigError
from kvasir.serve.state import entries
from kvasir.serve.state.database import VERSION
from kvasir.serve.state.entries import Quota
from kvasir.serve.state.store import Store
from tests.unit.test_state_store import QUOTA, entry


def test_another_version_or_program_is_refused(tmp_path: Path) -> None:
    Store(tmp_path, QUOTA).close()
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute(f"PRAGMA user_version = {VERSION + 1}")
    db.close()
    with pytest.raises(ConfigError, match=f"has version {VERSION + 1}, this is version {VERSION}"):
        Store(tmp_path, QUOTA)
    (tmp_path / "state.db").unlink()
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute("CREATE TABLE theirs (x)")
    db.close()
    theirs = (tmp_path / "state.db").read_bytes()
    with pytest.raises(ConfigError, match="another program"):
        Store(tmp_path, QUOTA)
    assert (tmp_path / "state.db").read_bytes() == theirs


def test_files_of_others_in_the_folder_are_not_removed(tmp_path: Path) -> None:
    theirs = tmp_path / "files" / "thesis.txt"
    theirs.parent.mkdir()
    theirs.write_text("years of work")
    for _ in range(2):  # the first attempt leaves nothing that would pass for a state
        with pytest.raises(ConfigError, match="beside it that knows them"):
            Store(tmp_path, QUOTA)
        assert theirs.read_text() == "years of work"


def test_a_state_cut_off_to_nothing_keeps_its_contents(tmp_path: Path) -> None:
    store = Store(tmp_path, QUOTA)
    content = store.folder.begin("file-1")
    content.write(b"x")
    content.keep()
    asyncio.run(store.run(lambda db: entries.add(db, entry("file-1"), QUOTA)))
    store.close()
    (tmp_path / "state.db").write_bytes(b"")
    with pytest.raises(ConfigError, match="beside it that knows them"):
        Store(tmp_path, QUOTA)
    assert store.folder.content("file-1").read_bytes() == b"x"


@pytest.mark.parametrize(
    "change", ["DROP TABLE lines", "DROP TRIGGER entries_added", "ALTER TABLE used ADD COLUMN x"]
)
def test_other_tables_under_our_version_are_damage(tmp_path: Path, change: str) -> None:
    Store(tmp_path, QUOTA).close()
    with sqlite3.connect(tmp_path / "state.db") as db:
        db.execute(change)
    db.close()
    with pytest.raises(ConfigError, match="is damaged"):
        Store(tmp_path, QUOTA)


def test_a_folder_in_the_place_of_the_database_is_an_error_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "state.db").mkdir()
    with pytest.raises(ConfigError, match="is damaged"):
        Store(tmp_path, QUOTA)


def test_damage_is_an_error_at_the_start(tmp_path: Path) -> None:
    store = Store(tmp_path, Quota(999, 10**9))
    for i in range(200):
        asyncio.run(store.run(lambda db, i=i: entries.add(db, entry(f"{i:0500}"), store.quota)))
    store.close()
    path = tmp_path / "state.db"
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        data[at : at + 64] = os.urandom(64)
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=r"is damaged .*move it away to begin anew"):
        Store(tmp_path, QUOTA)
    path.write_bytes(b"no database at all, and long enough to be read as a header" * 9)
    with pytest.raises(ConfigError, match="is damaged"):
        Store(tmp_path, QUOTA)
