"""Saved blocks come back as they were, or not at all."""

from __future__ import annotations

import errno
import logging
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvasir.core.errors import ConfigError, KvasirError
from kvasir.exec.disk.directory import LOCK, N_SEGMENTS, Limits, SegmentDirectory
from kvasir.exec.disk.segment import Segment
from kvasir.exec.disk.store import DiskStore
from kvasir.kv.tier import Fetch

BLOCK = 1000
LIMITS = Limits(N_SEGMENTS * 4 * 1200, (BLOCK,))
"""Four blocks in a file."""


def name(i: int) -> bytes:
    return i.to_bytes(32, "little") + bytes(4)


def block(i: int) -> bytes:
    return bytes((i + j) % 251 for j in range(BLOCK))


def fetch(store: DiskStore, *numbers: int) -> list[bytes]:
    return wait_for(store, store.fetch([name(i) for i in numbers])).blocks


def wait_for(store: DiskStore, fetch: Fetch) -> Fetch:
    while not fetch.is_done:
        store.wait(0.05)
    return fetch


def fill(path: Path, *numbers: int) -> None:
    store = DiskStore(path, LIMITS)
    for i in numbers:
        assert store.put(name(i), block(i))
    store.close(10)
    assert (store.stats.n_stored, store.stats.n_dropped) == (len(numbers), 0)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DiskStore]:
    made = DiskStore(tmp_path / "kv", LIMITS)
    yield made
    made.close(10)


def test_blocks_come_back_in_order(store: DiskStore) -> None:
    for i in range(10):
        assert store.put(name(i), block(i))
    assert fetch(store, 3, 0, 9) == [block(3), block(0), block(9)]


def test_a_fetch_ends_at_the_first_miss(store: DiskStore) -> None:
    store.put(name(1), block(1))
    assert fetch(store, 1, 2, 1) == [block(1)]
    assert name(1) in store
    assert name(2) not in store


def test_staged_blocks_are_taken_once(store: DiskStore) -> None:
    store.put(name(1), block(1))
    store.stage(wait_for(store, store.fetch([name(1)])), {name(1)})
    assert store.take(name(1)) == block(1)
    assert store.stats.n_loaded == 1
    with pytest.raises(KvasirError, match="was not read from disk"):
        store.take(name(1))


def test_a_block_is_there_for_each_plan_that_loads_it(store: DiskStore) -> None:
    """Plans run after the next one is made, which may load what was evicted meanwhile again."""
    store.put(name(1), block(1))
    for _ in range(2):
        store.stage(wait_for(store, store.fetch([name(1)])), {name(1)})
    assert [store.take(name(1)) for _ in range(2)] == [block(1)] * 2
    with pytest.raises(KvasirError, match="was not read from disk"):
        store.take(name(1))


def test_blocks_survive_a_restart(tmp_path: Path) -> None:
    fill(tmp_path, *range(9))
    fill(tmp_path, *range(20, 23))
    with_all = DiskStore(tmp_path, LIMITS)
    assert len(with_all) == 12
    assert fetch(with_all, *range(9), 20, 22) == [block(i) for i in (*range(9), 20, 22)]
    with_all.close(1)
    assert len(list(tmp_path.glob("*.kvseg"))) == 3, "a file with room is continued"


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    fill(tmp_path / "kv", 1)
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "kv").iterdir()}
    assert set(modes.values()) == {0o600}
    assert stat.S_IMODE((tmp_path / "kv").stat().st_mode) == 0o700


def test_the_bound_holds_and_what_was_used_last_stays(tmp_path: Path) -> None:
    held = SegmentDirectory(tmp_path, LIMITS)
    for i in range(4 * N_SEGMENTS):
        held.append(name(i), block(i))
    held.touch(name(0))
    for i in range(1000, 1040):
        held.append(name(i), block(i))
        assert sum(p.stat().st_size for p in tmp_path.glob("*.kvseg")) <= LIMITS.n_bytes
    assert held.read(name(0)) == block(0)
    assert held.read(name(4)) is None
    assert held.read(name(1039)) == block(1039)
    held.close()


def test_use_is_remembered_beyond_a_restart(tmp_path: Path) -> None:
    fill(tmp_path, *range(4 * (N_SEGMENTS - 1)))
    for i, path in enumerate(sorted(tmp_path.glob("*.kvseg"))):
        os.utime(path, ns=(i, i))
    held = SegmentDirectory(tmp_path, LIMITS)
    held.touch(name(0))
    held.close()
    held = SegmentDirectory(tmp_path, LIMITS)
    for i in range(1000, 1060):
        held.append(name(i), block(i))
    assert name(0) in held
    assert name(4) not in held
    held.close()


def test_a_smaller_bound_drops_what_is_too_much(tmp_path: Path) -> None:
    fill(tmp_path, *range(4 * N_SEGMENTS))
    held = SegmentDirectory(tmp_path, Limits(LIMITS.n_bytes // 2, (BLOCK,)))
    assert held.n_bytes <= LIMITS.n_bytes // 2
    assert 0 < len(held) < 4 * N_SEGMENTS
    held.close()


def test_a_damaged_block_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(tmp_path, 1, 2)
    path = next(tmp_path.glob("*.kvseg"))
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    store = DiskStore(tmp_path, LIMITS)
    with caplog.at_level(logging.WARNING):
        assert fetch(store, 1, 2) == [block(1)]
    assert name(2) not in store
    assert store.stats.n_damaged == 1
    assert "damaged" in caplog.text
    assert store.put(name(2), block(2))
    assert fetch(store, 2) == [block(2)]
    store.close(1)


def test_a_foreign_file_is_removed_and_others_are_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(tmp_path, 1)
    (tmp_path / f"{7:016d}.kvseg").write_bytes(b"not ours" * 100)
    (tmp_path / "notes.txt").write_text("mine")
    fill(tmp_path, 2)
    assert "does not hold KV blocks" in caplog.text
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"{1:016d}.kvseg", LOCK, "notes.txt"]


def test_two_engines_do_not_share_a_directory(store: DiskStore, tmp_path: Path) -> None:
    who = rf"used by another engine \(process {os.getpid()} on .+\): wait until that has ended, or"
    for _ in range(2):  # who was refused leaves everything as it was
        with pytest.raises(ConfigError, match=who):
            DiskStore(tmp_path / "kv", LIMITS)
    store.put(name(1), block(1))
    assert fetch(store, 1) == [block(1)]


HOLD = """
import sys
from pathlib import Path
from kvasir.exec.disk.directory import Limits, SegmentDirectory
held = SegmentDirectory(Path(sys.argv[1]), Limits(*map(int, sys.argv[2:3]), (int(sys.argv[3]),)))
held.append(bytes(36), bytes(int(sys.argv[3])))
print("held", flush=True)
sys.stdin.read()
"""


def test_another_process_has_the_directory_until_it_ends_however_that_is(tmp_path: Path) -> None:
    sizes = [str(LIMITS.n_bytes), str(BLOCK)]
    command = [sys.executable, "-c", HOLD, str(tmp_path / "kv"), *sizes]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as other:  # type: ignore[call-overload]
        assert other.stdout.readline() == "held\n"
        with pytest.raises(ConfigError, match=rf"\(process {other.pid} on "):
            DiskStore(tmp_path / "kv", LIMITS)
        other.kill()
    fill(tmp_path / "kv", 1)
    store = DiskStore(tmp_path / "kv", LIMITS)
    assert wait_for(store, store.fetch([bytes(36)])).blocks == [bytes(BLOCK)]
    store.close(1)


@pytest.mark.parametrize("text", [b"", b"\xff\x00", b"a\x1b[2J", b"x" * 10_000])
def test_a_lock_that_says_nothing_of_its_holder(tmp_path: Path, text: bytes) -> None:
    held = SegmentDirectory(tmp_path, LIMITS)
    (tmp_path / LOCK).write_bytes(text)
    with pytest.raises(ConfigError, match=r"used by another engine( \(x{100}\))?: wait"):
        SegmentDirectory(tmp_path, LIMITS)
    held.close()


def test_who_cannot_sign_on_a_full_disk_has_the_directory_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    held = SegmentDirectory(tmp_path, LIMITS)
    assert held.read(name(1)) == block(1)
    with pytest.raises(ConfigError, match="used by another engine: wait"):
        SegmentDirectory(tmp_path, LIMITS)
    held.close()


def test_what_cannot_be_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(ConfigError, match="not a directory"):
            DiskStore(path, LIMITS)


def test_a_read_only_place_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigError, match="Read-only file system: name a directory"):
        DiskStore(tmp_path, LIMITS)


def test_a_bound_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"kv_disk_size 62\.5 KiB is too small"):
        DiskStore(tmp_path, Limits(64_000, (BLOCK,)))


def test_a_full_disk_is_logged_once_and_reading_goes_on(
    store: DiskStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store.put(name(1), block(1))
    fetch(store, 1)
    while not store.stats.n_stored:
        store.wait(0.01)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Segment, "append", full)
    for i in range(2, 8):
        store.put(name(i), block(i))
    while store.stats.n_dropped < 6:
        store.wait(0.01)
    assert not store.put(name(9), block(9))
    assert fetch(store, 1) == [block(1)]
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "Free some space" in caplog.text


def test_what_comes_too_fast_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    append = SegmentDirectory.append

    def slow(self: SegmentDirectory, name: bytes, payload: bytes) -> None:
        go.wait(5)
        append(self, name, payload)

    monkeypatch.setattr(SegmentDirectory, "append", slow)
    store = DiskStore(tmp_path, LIMITS, max_queued_bytes=4 * BLOCK)
    assert [store.put(name(i), block(i)) for i in range(6)] == [True] * 4 + [False] * 2
    assert not store.has_room()
    assert store.stats.n_dropped == 2
    go.set()
    store.close(10)
    assert store.stats.n_stored == 4


def test_closing_does_not_wait_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(SegmentDirectory, "append", lambda *_: go.wait(5))
    store = DiskStore(tmp_path, LIMITS)
    for i in range(5):
        store.put(name(i), block(i))
    threading.Timer(1, go.set).start()
    store.close(0.01)
    assert store.stats.n_dropped >= 4
