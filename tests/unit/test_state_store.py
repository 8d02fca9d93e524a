"""The store of the state: schema, owners, quotas, ends, damage, and death at any moment."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from kvasir.core.errors import CapacityError, ConfigError
from kvasir.serve.state import entries
from kvasir.serve.state.database import StateError, StorageFull, open_database, transaction
from kvasir.serve.state.entries import Entry, Gone, Kind, Page, Quota
from kvasir.serve.state.files import MAX_UPLOADS, Files
from kvasir.serve.state.folder import PREFIX, Folder
from kvasir.serve.state.store import StateBusy, Store
from kvasir.serve.telling import Telling, check_open

QUOTA = Quota(entries=3, bytes=100)
A, B = b"a", b"b"


def entry(name: str, owner: bytes = A, kind: Kind = "file", n_bytes: int = 10) -> Entry:
    expires = None if kind == "file" else 1000
    return Entry(name, kind, owner, "label", 1, expires, n_bytes, b'{"id":"%s"}' % name.encode())


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    made = open_database(None)
    yield made
    made.close()


def names(found: list[Entry]) -> list[str]:
    return [one.id for one in found]


def test_nobody_sees_what_is_anothers(db: sqlite3.Connection) -> None:
    entries.add(db, entry("one", A), QUOTA)
    assert entries.find(db, "file", "one", A, 0).id == "one"
    for kind, name, owner in (("file", "one", B), ("batch", "one", A), ("file", "two", A)):
        with pytest.raises(Gone) as caught:
            entries.find(db, kind, name, owner, 0)  # type: ignore[arg-type]
        assert caught.value.status == 404
    with pytest.raises(Gone):
        entries.remove(db, "file", "one", B, 0)
    assert entries.page(db, "file", B, Page(9), 0) == ([], False)
    with pytest.raises(Gone):
        entries.page(db, "file", B, Page(9, after="one"), 0)


def test_pages_follow_each_other_in_the_order_of_creation(db: sqlite3.Connection) -> None:
    for i in range(5):
        entries.add(db, entry(str(i)), Quota(9, 999))
    entries.add(db, replace(entry("other"), label="other"), Quota(9, 999))
    asked = Page(2, label="label", newest_first=False)
    seen: list[str] = []
    while True:
        found, has_more = entries.page(db, "file", A, asked, 0)
        seen += names(found)
        if not has_more:
            break
        asked = replace(asked, after=found[-1].id)
    assert seen == ["0", "1", "2", "3", "4"]
    found, has_more = entries.page(db, "file", A, Page(2), 0)
    assert (names(found), has_more) == (["other", "4"], True)


def test_a_page_of_large_values_is_shorter(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "PAGE_BYTES", 30)
    for name, size in (("a", 10), ("b", 20), ("c", 1), ("d", 90), ("e", 5)):
        entries.insert(db, replace(entry(name), value=b"x" * size))
    pages, after, has_more = [], None, True
    while has_more:
        found, has_more = entries.page(db, "file", A, Page(4, after, newest_first=False), 0)
        after = found[-1].id
        pages.append(names(found))
    assert pages == [["a", "b"], ["c"], ["d"], ["e"]]


def test_quotas_say_the_sizes(db: sqlite3.Connection) -> None:
    for i in range(3):
        entries.add(db, entry(str(i)), QUOTA)
    with pytest.raises(CapacityError, match=r"4 stored entries, the limit is 3.*--state-entries"):
        entries.add(db, entry("more"), QUOTA)
    entries.add(db, entry("b", B), QUOTA)
    with pytest.raises(CapacityError, match=r"101 stored bytes, the limit is 100.*--state-bytes"):
        entries.add(db, entry("large", B, n_bytes=91), QUOTA)
    entries.remove(db, "file", "0", A, 0)
    entries.add(db, entry("more"), QUOTA)
    assert entries.used(db, A) == entries.Used(3, 30)
    assert entries.used(db) == entries.Used(4, 40)


def test_answers_give_way_to_the_next_and_files_do_not(db: sqlite3.Connection) -> None:
    entries.add(db, entry("file"), QUOTA)
    for name in ("first", "second"):
        entries.add(db, entry(name, kind="response"), QUOTA)
    assert entries.add(db, entry("third", kind="chat"), QUOTA) == ["first"]
    assert entries.add(db, entry("wide", n_bytes=80), QUOTA) == ["second"]
    with pytest.raises(CapacityError):
        entries.add(db, entry("wider", n_bytes=85, kind="response"), QUOTA)


def test_with_a_bound_of_all_who_has_most_gives_way(db: sqlite3.Connection) -> None:
    quota = Quota(entries=4, bytes=1000, all_entries=4, all_bytes=1000)
    for i in range(3):
        entries.add(db, entry(f"a{i}", A, "response"), quota)
    entries.add(db, entry("b0", B, "response"), quota)
    assert entries.add(db, entry("b1", B, "response"), quota) == ["a0"]


def test_who_has_few_finds_room_where_another_took_all(db: sqlite3.Connection) -> None:
    """An eighth is kept for it, beyond the bound of all; files do not give way."""
    quota = Quota(entries=16, bytes=1600, all_entries=16, all_bytes=1600)
    for i in range(16):
        entries.add(db, entry(f"a{i}", A), quota)
    with pytest.raises(CapacityError, match="17 stored entries, the limit is 16"):
        entries.add(db, entry("more", A), quota)
    for i in range(2):
        entries.add(db, entry(f"b{i}", B), quota)
    with pytest.raises(CapacityError, match="19 stored entries of all keys, the limit is 16"):
        entries.add(db, entry("more", B, "response"), quota)


def test_uploads_of_one_leave_room_for_others() -> None:
    store = Store(None, Quota(99, 10**6))
    files = Files(store, max_bytes=99, days=1)

    async def run() -> None:
        async with AsyncExitStack() as open_files:
            for _ in range(MAX_UPLOADS):
                await open_files.enter_async_context(files.upload(A))
            with pytest.raises(CapacityError):
                await open_files.enter_async_context(files.upload(A))
            await open_files.enter_async_context(files.upload(B))
        assert not files._arriving

    asyncio.run(run())
    store.close()


def test_open_answers_of_one_leave_room_for_others() -> None:
    tellings = [Telling(A) for _ in range(80)]
    with pytest.raises(CapacityError, match="80 answers wait, the limit is 80"):
        check_open(tellings, A, 80, "answers wait")
    for _ in range(10):
        check_open(tellings, B, 80, "answers wait")
        tellings.append(Telling(B))
    with pytest.raises(CapacityError):
        check_open(tellings, B, 80, "answers wait")


def test_an_answer_that_has_not_ended_gives_no_way(db: sqlite3.Connection) -> None:
    quota = Quota(entries=2, bytes=1000)
    entries.add(db, replace(entry("open", kind="response"), expires=None), quota)
    entries.add(db, entry("done", kind="response"), quota)
    assert entries.add(db, entry("next", kind="response"), quota) == ["done"]
    assert entries.lasting(db, "response") == {"open": A}


def test_what_has_ended_is_gone_before_it_is_swept(db: sqlite3.Connection) -> None:
    entries.add(db, replace(entry("one"), expires=100), QUOTA)
    assert entries.find(db, "file", "one", A, 99.9)
    with pytest.raises(Gone):
        entries.find(db, "file", "one", A, 100)
    assert entries.page(db, "file", A, Page(9), 100) == ([], False)
    assert entries.expire(db, 99) == []
    assert entries.expire(db, 100) == ["one"]
    assert entries.used(db) == entries.Used(0, 0)


def test_a_replaced_value_counts_its_bytes(db: sqlite3.Connection) -> None:
    entries.add(db, entry("one"), QUOTA)
    assert entries.replace(db, "one", b"{}", 25, None)
    assert not entries.replace(db, "two", b"{}", 25, None)
    assert entries.used(db, A) == entries.Used(1, 25)


def test_a_transaction_is_whole_or_not_there(db: sqlite3.Connection) -> None:
    with pytest.raises(ZeroDivisionError), transaction(db):
        entries.add(db, entry("one"), QUOTA)
        raise ZeroDivisionError
    assert entries.used(db) == entries.Used(0, 0)
    with pytest.raises(StateError, match="the state cannot be used"), transaction(db):
        entries.add(db, entry("one"), QUOTA)
        entries.add(db, entry("one"), QUOTA)
    assert entries.used(db) == entries.Used(0, 0)


def test_only_its_owner_reads_the_folder(tmp_path: Path) -> None:
    os.umask(0)
    store = Store(tmp_path / "state", QUOTA)
    content = store.folder.begin("file-1")
    content.write(b"text")
    content.keep()
    asyncio.run(store.run(lambda db: entries.add(db, entry("file-1"), QUOTA)))
    modes = {
        path.relative_to(tmp_path).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    store.close()
    assert modes == {
        "state": 0o700,
        "state/lock": 0o600,
        "state/answering": 0o600,
        "state/state.db": 0o600,
        "state/state.db-wal": 0o600,
        "state/state.db-shm": 0o600,
        "state/files": 0o700,
        "state/files/file-1": 0o600,
    }


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    store = Store(tmp_path, QUOTA)
    with pytest.raises(ConfigError, match="another server uses the state"):
        Store(tmp_path, QUOTA)
    store.close()
    Store(tmp_path, QUOTA).close()


def test_a_successor_has_the_state_when_its_predecessor_ends(tmp_path: Path) -> None:
    async def run() -> None:
        before = Store(tmp_path, QUOTA)
        after = Store(tmp_path, QUOTA, follows=True)
        await before.run(lambda db: entries.add(db, entry("one"), QUOTA))
        assert await after.run(lambda db: entries.ids(db, "file")) == ["one"]
        taken = asyncio.create_task(after.mine())
        await asyncio.sleep(0.3)
        assert not taken.done()
        before.close()
        await taken
        after.close()

    asyncio.run(run())


def test_contents_that_no_entry_knows_are_removed_at_the_start(tmp_path: Path) -> None:
    store = Store(tmp_path, QUOTA)
    for name in ("file-1", "file-2"):
        content = store.folder.begin(name)
        content.write(b"x")
        content.keep()
    (tmp_path / "files" / "file-3.part").write_bytes(b"half")
    asyncio.run(store.run(lambda db: entries.add(db, entry("file-1"), QUOTA)))
    store.close()
    store = Store(tmp_path, QUOTA)
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["file-1"]
    store.close()


def test_the_input_of_a_batch_stays_while_it_is_open(tmp_path: Path) -> None:
    """A server is killed when a batch has ended, before it removes the input."""
    store = Store(tmp_path, QUOTA)
    kept = replace(entry("batch-open", kind="batch"), expires=None)
    ended = replace(entry("batch-ended", kind="batch"), expires=2**40)
    for one in (kept, ended):
        (tmp_path / "files" / one.id).write_bytes(b"lines")
        asyncio.run(store.run(lambda db, one=one: entries.insert(db, one)))  # type: ignore[misc]
    store.close()
    store = Store(tmp_path, QUOTA)
    assert [path.name for path in (tmp_path / "files").iterdir()] == ["batch-open"]
    store.close()


def test_without_a_folder_nothing_stays(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    left = tmp_path / f"{PREFIX}left"
    Folder(left).close()  # as of a server that was killed
    live = Folder(tmp_path / f"{PREFIX}live")
    assert live.take()
    store = Store(None, QUOTA)
    assert not left.exists() and live.path.exists() and not store.is_lasting
    (store.folder.path / "files" / "file-1").write_bytes(b"x")
    store.close()
    live.close()
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}live"]


def test_what_waits_for_the_disk_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvasir.serve.state.store.MAX_WAITING", 2)

    async def run(store: Store) -> None:
        slow = [asyncio.create_task(store.run(lambda db: time.sleep(0.2))) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(StateBusy):
            await store.run(lambda db: None)
        await asyncio.gather(*slow)
        assert await store.run(lambda db: 3) == 3

    store = Store(None, QUOTA)
    asyncio.run(run(store))
    store.close()


def test_a_full_disk_is_an_error_and_reading_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run(store: Store) -> None:
        await store.run(lambda db: entries.add(db, entry("one"), QUOTA))
        pages = store._db.execute("PRAGMA page_count").fetchone()[0]
        store._db.execute(f"PRAGMA max_page_count = {pages}")
        large = replace(entry("two"), value=bytes(10**5))
        with pytest.raises(StorageFull) as caught:
            await store.run(lambda db: entries.add(db, large, QUOTA))
        assert caught.value.status == 507
        assert await store.run(lambda db: entries.find(db, "file", "one", A, 0))
        content = store.folder.begin("file-1")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageFull):
            content.keep()
        content.drop()
        assert list((tmp_path / "files").iterdir()) == []

    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    store = Store(tmp_path, QUOTA)
    asyncio.run(run(store))
    store.close()


WRITER = """
import asyncio, sys
from pathlib import Path
from kvasir.serve.state import entries
from kvasir.serve.state.entries import Entry, Quota
from kvasir.serve.state.store import Store

store = Store(Path(sys.argv[1]), Quota(10**6, 10**9))

async def main():
    first = len(await store.run(lambda db: entries.ids(db, "file")))
    for i in range(first, 10**6):
        name = f"file-{i}"
        content = store.folder.begin(name)
        content.write(name.encode() * 1000)
        content.keep()
        entry = Entry(name, "file", b"", "", 0, None, 1, b"{}")
        await store.run(lambda db: entries.add(db, entry, store.quota))
        print(i, flush=True)

asyncio.run(main())
"""


def test_death_at_any_moment_loses_nothing_that_was_told(tmp_path: Path) -> None:
    chance, told = random.Random(7), -1
    for _ in range(6):
        command = [sys.executable, "-c", WRITER, str(tmp_path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            for _ in range(chance.randrange(1, 40)):
                told = int(writer.stdout.readline())
            time.sleep(chance.random() / 100)
            writer.send_signal(signal.SIGKILL)
            rest = writer.stdout.read().split()
            told = int(rest[-1]) if rest else told
        store = Store(tmp_path, QUOTA)
        known = asyncio.run(store.run(lambda db: entries.ids(db, "file")))
        contents = {path.name: path.read_bytes() for path in (tmp_path / "files").iterdir()}
        store.close()
        assert len(known) in (told + 1, told + 2)
        assert known == [f"file-{i}" for i in range(len(known))]
        assert contents == {name: name.encode() * 1000 for name in known}
