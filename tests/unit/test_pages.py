"""Weights in huge pages: where they begin, what is in them, what is said where there are few."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import numpy as np
import pytest

from kvasir import _native
from kvasir.exec.cpu import packed, pages
from kvasir.exec.cpu.packed import PackedCache
from kvasir.exec.cpu.packing import Packing
from kvasir.exec.cpu.pages import (
    HUGE_BYTES,
    LEAST_BYTES,
    WeightMemory,
    gives_huge_pages,
    huge_memory,
    in_huge_pages,
    read_whole,
    tell,
)


def test_memory_is_zeros_from_the_start_of_a_huge_page_on() -> None:
    memory = huge_memory(HUGE_BYTES + 5)
    assert memory.size == HUGE_BYTES + 5 and memory.ctypes.data % HUGE_BYTES == 0
    assert not memory.any()
    memory[:] = 7
    assert huge_memory(0).size == 0


@pytest.mark.parametrize("huge", [False, True])
def test_weights_lie_apart_and_on_cache_lines(huge: bool) -> None:
    sizes = (100, 64, LEAST_BYTES)
    memory = WeightMemory(sum(-(-size // 64) * 64 for size in sizes), huge=huge)
    taken = [memory.take(size) for size in sizes]
    for number, weight in enumerate(taken, 1):
        assert not weight.any()
        weight[:] = number
    assert [(w.size, int(w.min()), int(w.max())) for w in taken] == [
        (size, number, number) for number, size in enumerate(sizes, 1)
    ]
    if huge:
        assert [w.ctypes.data % 64 for w in taken] == [0, 0, 0]


def test_where_there_is_no_run_of_memory_each_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(n_bytes: int) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(pages, "huge_memory", full)
    assert not WeightMemory(LEAST_BYTES, huge=True).take(LEAST_BYTES).any()


def test_a_kept_file_is_read_into_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is mapped and what is copied are equal; damage is found in either."""
    sizes = (LEAST_BYTES, 1000)
    weights = [np.arange(size, dtype=np.uint32).astype(np.uint8) for size in sizes]
    packing, pool = Packing(bytes(32), sizes), _native.Pool(1)
    cache = PackedCache(tmp_path, 1 << 30)
    cache.store(packing, weights)
    copies: list[Path] = []

    def counted(path: Path) -> object:
        copies.append(path)
        return read_whole(path)

    monkeypatch.setattr(packed, "read_whole", counted)
    for huge in (False, True):
        found = cache.load(packing, pool, huge=huge)
        assert found is not None and len(copies) == huge
        assert all(np.array_equal(a, b) for a, b in zip(found, weights, strict=True))
    path = tmp_path / packing.file_name
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert cache.load(packing, pool, huge=True) is None
    path.write_bytes(data[:-1])
    assert cache.load(packing, pool, huge=True) is None
    assert len(copies) == 2, "a file of another size is not copied"


def test_what_has_no_room_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packing = Packing(bytes(32), (LEAST_BYTES,))
    cache = PackedCache(tmp_path, 1 << 30)
    cache.store(packing, [np.ones(LEAST_BYTES, np.uint8)])

    class Full:
        free_memory = LEAST_BYTES

    monkeypatch.setattr(packed, "probe", Full)
    monkeypatch.setattr(packed, "read_whole", None)
    assert cache.load(packing, _native.Pool(1), huge=True) is not None


def test_what_the_system_says(tmp_path: Path) -> None:
    file = tmp_path / "enabled"
    said = {"always [madvise] never": True, "[always] madvise never": True}
    said |= {"always madvise [never]": False, "": False}
    for text, gives in said.items():
        file.write_text(text)
        assert gives_huge_pages(file) is gives
    rollup = tmp_path / "rollup"
    rollup.write_text(
        "00400000-7ff000 ---p 0 00:00 0 [rollup]\nRss: 9 kB\nAnonHugePages: 2048 kB\n"
    )
    assert in_huge_pages(rollup) == HUGE_BYTES
    assert in_huge_pages(tmp_path / "none") == 0


def test_few_of_them_are_a_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        tell(64 << 20, 40 << 20)
        tell(1 << 20, 0)
        assert not caplog.records
        tell(64 << 20, 10 << 20)
    assert "10 of 64 MB" in caplog.text and "compact_memory" in caplog.text
