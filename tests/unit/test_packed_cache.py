"""Packed weights on disk: used when they are right, packed again when anything is wrong."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from kvasir import _native
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.engine.build import build_engine
from kvasir.exec.cpu import packed
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.packed import PackedCache
from kvasir.exec.cpu.packing import CHUNK, Packing, packing_of
from tests import tiny
from tests.loading import Loaded, load, sizes_for, whole_prompt
from tests.native import plan_logits

POOL = _native.Pool(2)
SIZES = (100, 3, CHUNK + 5)
PROMPT = whole_prompt(tuple(range(1, 30)))


def weights_of(packing: Packing, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, size, np.uint8) for size in packing.sizes]


@pytest.fixture
def cache(tmp_path: Path) -> PackedCache:
    return PackedCache(tmp_path / "packed", 1 << 30, min_bytes=0)


def test_xxh64_is_the_published_one() -> None:
    for text, expected in (
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ):
        sums = np.zeros(1, np.uint64)
        _native.checksums(POOL, np.frombuffer(text, np.uint8), 100, sums)
        assert int(sums[0]) == expected == _native.checksum(text)
    assert _native.checksum(b"", 2654435761) == 0xAC75FDA2929B17EF


def test_sums_of_chunks_are_those_of_their_bytes() -> None:
    data = np.random.default_rng(1).integers(0, 256, 1000, np.uint8)
    sums, alone = np.zeros(4, np.uint64), np.zeros(1, np.uint64)
    _native.checksums(POOL, data, 300, sums)
    for i in range(4):
        _native.checksums(_native.Pool(1), data[300 * i : 300 * (i + 1)], 1000, alone)
        assert sums[i] == alone[0]
    with pytest.raises(ValueError, match="one sum per chunk"):
        _native.checksums(POOL, data, 300, alone)


def test_what_was_kept_comes_back(cache: PackedCache) -> None:
    packing = packing_of("model", "packing", SIZES)
    weights = weights_of(packing)
    assert cache.load(packing, POOL) is None
    cache.store(packing, weights)
    found = cache.load(packing, POOL)
    assert found is not None
    assert [part.tobytes() for part in found] == [part.tobytes() for part in weights]
    assert not any(part.flags.writeable for part in found)
    assert all(part.ctypes.data % 64 == 0 for part in found)
    assert [path.name for path in cache.folder.iterdir()] == [packing.file_name]


def test_key_is_all_that_decides_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {packing_of("model", ("q4m", (2, 3)), (64,)).key}
    keys.add(packing_of("another model", ("q4m", (2, 3)), (64,)).key)
    keys.add(packing_of("model", ("q4z", (2, 3)), (64,)).key)
    keys.add(packing_of("model", ("q4m", (2, 3)), (128,)).key)
    monkeypatch.setattr(_native, "LAYOUT_VERSION", 999)
    keys.add(packing_of("model", ("q4m", (2, 3)), (64,)).key)
    assert len(keys) == 5


@pytest.mark.parametrize("at", [0, 9, 20, 60, 84, 4096, 4096 + CHUNK + 140])
def test_a_flipped_bit_is_refused(
    cache: PackedCache, at: int, caplog: pytest.LogCaptureFixture
) -> None:
    packing = packing_of("model", "packing", SIZES)
    cache.store(packing, weights_of(packing))
    path = cache.folder / packing.file_name
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)
    assert cache.load(packing, POOL) is None
    assert "damaged" in caplog.text
    assert len(caplog.records) == 1
    cache.store(packing, weights_of(packing))
    assert cache.load(packing, POOL) is not None


def test_a_short_an_empty_and_a_foreign_file_are_refused(
    cache: PackedCache, caplog: pytest.LogCaptureFixture
) -> None:
    ours, theirs = (packing_of(name, "packing", SIZES) for name in ("ours", "theirs"))
    cache.store(theirs, weights_of(theirs))
    path = cache.folder / theirs.file_name
    path.rename(cache.folder / ours.file_name)
    path = cache.folder / ours.file_name
    assert cache.load(ours, POOL) is None
    assert "header of other weights" in caplog.text
    os.truncate(path, 5000)
    assert cache.load(ours, POOL) is None
    assert f"has 5000 bytes, {ours.file_bytes} were expected" in caplog.text
    os.truncate(path, 0)
    assert cache.load(ours, POOL) is None
    path.unlink()
    path.mkdir()
    assert cache.load(ours, POOL) is None
    assert len(caplog.records) == 4


def test_the_file_used_longest_ago_goes_first(cache: PackedCache) -> None:
    packings = [packing_of(str(i), "packing", (50_000,)) for i in range(4)]
    small = replace(cache, limit=3 * packings[0].file_bytes)
    for age, packing in enumerate(packings[:3]):
        small.store(packing, weights_of(packing))
        os.utime(small.folder / packing.file_name, (age, age))
    assert small.load(packings[0], POOL) is not None  # used just now
    small.store(packings[3], weights_of(packings[3]))
    kept = [packing for packing in packings if small.load(packing, POOL) is not None]
    assert kept == [packings[0], packings[2], packings[3]]


def test_what_exceeds_the_bound_is_not_kept(
    cache: PackedCache, caplog: pytest.LogCaptureFixture
) -> None:
    packing = packing_of("model", "packing", SIZES)
    replace(cache, limit=packing.file_bytes - 1).store(packing, weights_of(packing))
    assert cache.load(packing, POOL) is None
    assert "exceed --packed-cache-size" in caplog.text


def test_a_full_disk_is_a_line_in_the_log(
    cache: PackedCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    packing = packing_of("model", "packing", SIZES)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        cache.store(packing, weights_of(packing))
    assert "No space left on device" in caplog.text
    monkeypatch.setattr(packed, "RESERVE_BYTES", 1 << 60)
    cache.store(packing, weights_of(packing))
    assert "that the disk has free" in caplog.text
    assert list(cache.folder.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_line_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    packing = packing_of("model", "packing", SIZES)
    PackedCache(tmp_path / "file" / "packed", 1 << 30).store(packing, weights_of(packing))
    assert "Not a directory" in caplog.text
    assert "--packed-cache" in caplog.text


def test_unfinished_files_of_dead_writers_go(cache: PackedCache) -> None:
    cache.folder.mkdir()
    dead, busy = cache.folder / "a.1.unfinished", cache.folder / "b.2.unfinished"
    dead.touch()
    packing = packing_of("model", "packing", SIZES)
    with busy.open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_SH)
        cache.store(packing, weights_of(packing))
    assert not dead.exists()
    assert busy.exists()


def test_two_writers_of_one_packing(cache: PackedCache, caplog: pytest.LogCaptureFixture) -> None:
    """As two engines of one process: the second begins and ends while the first still writes."""
    packing = packing_of("model", "packing", SIZES)
    weights = weights_of(packing)

    class Slow(list[np.ndarray]):
        """Lets the other write before its last part."""

        def __iter__(self) -> Iterator[np.ndarray]:
            *parts, last = list(super().__iter__())
            yield from parts
            cache.store(packing, weights)
            yield last

    cache.store(packing, Slow(weights))
    assert "not kept" not in caplog.text
    found = cache.load(packing, POOL)
    assert found is not None
    assert [part.tobytes() for part in found] == [part.tobytes() for part in weights]
    assert [path.name for path in cache.folder.iterdir()] == [packing.file_name]


def executor(model: Loaded, cache: PackedCache | None) -> CpuExecutor:
    settings = CpuSettings(2, _native.levels()[-1], packed_cache=cache)
    return CpuExecutor(model.program, model.binding, sizes_for(model.config), settings)


@pytest.mark.parametrize(
    ("model", "form"), [(tiny.llama(), "Q4_1"), (tiny.mixtral(), "Q8_0"), (tiny.qwen2(), "Q4_0")]
)
def test_a_second_start_computes_the_same(
    tmp_path: Path, cache: PackedCache, model: tiny.TinyModel, form: str, monkeypatch
) -> None:
    loaded = load(tiny.write_gguf_model(model, tmp_path / "m.gguf", form), "auto")
    expected = plan_logits(executor(loaded, None), PROMPT)
    first = executor(loaded, cache)
    assert np.array_equal(plan_logits(first, PROMPT), expected)
    first.close()
    monkeypatch.setattr("kvasir.exec.cpu.weights.Packer.pack", None)  # the second packs nothing
    assert np.array_equal(plan_logits(executor(loaded, cache), PROMPT), expected)


def test_a_model_that_changed_is_packed_again(tmp_path: Path, cache: PackedCache) -> None:
    path = tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    executor(load(path, "auto"), cache).close()
    data, stat = bytearray(path.read_bytes()), path.stat()
    data[-100] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    executor(load(path, "auto"), cache).close()
    executor(load(path, "float32"), cache).close()
    assert len(list(cache.folder.iterdir())) == 3


def test_small_models_are_not_kept(tmp_path: Path) -> None:
    model = tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0")
    folder = tmp_path / "packed"
    build_engine(EngineOptions(model=str(model), packed_cache=str(folder))).engine.close()
    assert not folder.exists()


def test_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_CACHE", str(tmp_path))
    model = str(tiny.write_gguf_model(tiny.llama(), tmp_path / "m.gguf", "Q8_0"))

    def folder(**options: str) -> tuple[Path | None, str]:
        built = build_engine(EngineOptions(model=model, **options))  # type: ignore[arg-type]
        built.engine.close()
        return built.config.executor.packed_cache, built.config.reasons["packed_cache"]

    assert folder() == (tmp_path / "packed", f"{tmp_path / 'packed'}: default")
    assert folder(packed_cache="off") == (None, "off: as asked")
    assert folder(packed_cache="/x") == (Path("/x"), "/x: as asked")
    with pytest.raises(ConfigError, match="packed_cache_size"):
        folder(packed_cache_size="much")
