"""What names a model file: all of its bytes, read once, whatever its times say."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as with_fields

from kvasir import LLM, SamplingParams
from kvasir.checkpoints.loaded import load_model
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ModelError
from kvasir.engine.build import build_engine
from kvasir.exec.cpu import backend
from kvasir.exec.cpu.lower import WeightUse
from kvasir.exec.cpu.packed import PackedCache
from kvasir.exec.cpu.weights import Packer
from kvasir.formats.decode import bytes_of
from kvasir.formats.gguf import open_gguf
from kvasir.formats.mapped import Stamp, TensorFile
from kvasir.formats.safetensors import INDEX_NAME, open_safetensors
from kvasir.offline.outputs import RequestOutput
from kvasir.weights import content, source
from kvasir.weights.content import CHUNK, COARSE, HashMemory, hash_bytes
from kvasir.weights.source import open_model
from tests import tiny, tiny_vision
from tests.gguf_writer import write_gguf

AT_ONCE = -(10**12)
"""As ``HashMemory.settled``: files are remembered that were written just now."""
PROMPT = list(range(4, 44))
ASKED = SamplingParams(temperature=0.0, max_tokens=6, logprobs=5, ignore_eos=True)


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which even fresh hashes and small models are kept."""
    keep_all(monkeypatch, tmp_path / "cache")
    return tmp_path / "cache"


def keep_all(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("KVASIR_CACHE", str(folder))
    monkeypatch.setattr(source, "HashMemory", partial(HashMemory, settled=AT_ONCE))
    monkeypatch.setattr(backend, "PackedCache", partial(PackedCache, min_bytes=0))


def write_model(folder: Path) -> Path:
    made = tiny.llama(num_hidden_layers=1)
    return tiny.write_gguf_model(made, folder / "m.gguf", "Q8_0")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files of which all bytes were hashed, in order."""
    found: list[Path] = []

    def counted(file: TensorFile) -> str:
        found.append(file.path)
        return hash_bytes(file)

    monkeypatch.setattr(content, "hash_bytes", counted)
    return found


def flip(path: Path, at: int, bit: int = 6) -> None:
    """Changes one bit; the file's times are what they were, but for ctime, which nobody can set."""
    stat = path.stat()
    time.sleep(0.012)  # the clock of file systems may tick by hundredths
    with path.open("r+b") as stream:
        stream.seek(at)
        byte = stream.read(1)[0]
        stream.seek(at)
        stream.write(bytes([byte ^ 1 << bit]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def spans(path: Path) -> Iterator[tuple[str, int, int]]:
    """Each tensor of a GGUF file: name, first byte, end."""
    file = open_gguf(path)
    base = np.frombuffer(file.mapping, np.uint8).__array_interface__["data"][0]
    for info in file.tensors.listing():
        begin = bytes_of(info).__array_interface__["data"][0] - base
        yield info.name, begin, begin + info.data.nbytes


def answer(path: Path, kept: Path | None) -> RequestOutput:
    folders = {"packed_cache": "off"}
    if kept is not None:
        folders = {"packed_cache": str(kept / "packed"), "kv_disk": str(kept / "kv")}
    with LLM(str(path), max_model_len=64, threads=1, **folders) as llm:
        (output,) = llm.generate(PROMPT, ASKED, use_tqdm=False)
    return output


def test_every_byte_counts(model: Path) -> None:
    rng, seen = np.random.default_rng(1), {open_model(model).content_hash}
    places = [int(rng.integers(begin, end)) for _, begin, end in spans(model) for _ in range(3)]
    first = min(begin for _, begin, _ in spans(model))
    for at in [*places, *map(int, rng.integers(0, first, 20)), model.stat().st_size - 1]:
        flip(model, at, 0)
        try:
            changed = open_model(model).content_hash
            assert changed not in seen, at
            seen.add(changed)
        except ModelError:
            pass  # a header that says nothing
        flip(model, at, 0)
    assert len(seen) > 40
    assert open_model(model).content_hash in seen


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RequestOutput]:
    """A folder with a model, and what was kept of its first answer, which is the other."""
    folder = tmp_path_factory.mktemp("answered")
    model = write_model(folder)
    with pytest.MonkeyPatch.context() as patch:
        keep_all(patch, folder / "cache")
        first = answer(model, folder / "kept")
        again = answer(model, folder / "kept")
    assert again.num_cached_tokens == 32, "the disk has the prompt"
    assert again.outputs[0].logprobs == first.outputs[0].logprobs
    return folder, first


@pytest.mark.parametrize("part", ["token_embd", "attn_q", "ffn_down", "norm", "output.weight"])
def test_a_changed_byte_gives_new_weights_and_no_old_keys(
    answered: tuple[Path, RequestOutput], tmp_path: Path, part: str
) -> None:
    folder, first = answered
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    model, kept = tmp_path / "m.gguf", tmp_path / "kept"
    assert len(list((kept / "packed").iterdir())) == 1
    name, begin, _ = next(span for span in spans(model) if part in span[0])
    flip(model, begin + 3 + 68 * 4, 5)  # exponent of a norm, a quant of a matrix
    changed = answer(model, kept)
    expected = answer(model, None)
    assert changed.outputs[0].logprobs == expected.outputs[0].logprobs, name
    assert changed.outputs[0].logprobs != first.outputs[0].logprobs, name
    assert changed.num_cached_tokens == 0
    assert len(list((kept / "packed").iterdir())) == 2


def test_a_second_start_reads_nothing(model: Path, tmp_path: Path, reads: list[Path]) -> None:
    answer(model, tmp_path / "kept")
    assert reads == [model]
    answer(model, tmp_path / "kept")
    copy = Path(shutil.copy2(model, tmp_path / "copy.gguf"))
    assert open_model(copy).content_hash == open_model(model).content_hash
    assert reads == [model, copy]


def test_starts_that_keep_nothing_read_nothing(model: Path, reads: list[Path]) -> None:
    answer(model, None)
    assert reads == []


def test_key_roots_of_starts_that_keep_nothing(model: Path) -> None:
    options = EngineOptions(model=str(model), packed_cache="off", threads=1)

    def root() -> str:
        built = build_engine(options)
        built.engine.close()
        return built.key_root

    first = root()
    assert root() == first
    flip(model, model.stat().st_size - 1)
    assert root() != first


def test_key_roots_say_how_pixels_are_read(tmp_path: Path) -> None:
    """Their mean stands in a file of its own, beside those that are hashed."""
    folder = tiny_vision.write(tiny_vision.smolvlm(), tmp_path)
    sizes: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 1, "threads": 1}

    def root() -> str:
        built = build_engine(EngineOptions(model=str(folder), packed_cache="off", **sizes))
        built.engine.close()
        return built.key_root

    first = root()
    assert root() == first
    processor = folder / "preprocessor_config.json"
    said = json.loads(processor.read_text()) | {"image_mean": [0.1, 0.2, 0.3]}
    processor.write_text(json.dumps(said))
    assert root() != first


def test_hash_does_not_depend_on_threads_or_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = np.arange(CHUNK // 2 + 8, dtype=np.float32).reshape(-1, 8)
    write_gguf(tmp_path / "big.gguf", {"general.architecture": "llama"}, {"w": ("F32", weights)})
    file = open_gguf(tmp_path / "big.gguf")
    assert len(file.mapping) > 2 * CHUNK
    digest = hash_bytes(file)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert hash_bytes(file) == digest
    flip(file.path, 2 * CHUNK)
    assert hash_bytes(open_gguf(file.path)) != digest


def test_hf_folders(tmp_path: Path, reads: list[Path]) -> None:
    folder = tiny.write_hf(tiny.llama(num_hidden_layers=1), tmp_path / "m")
    first = open_model(folder).content_hash
    linked = tmp_path / "linked"
    linked.mkdir()
    for path in folder.iterdir():
        (linked / path.name).symlink_to(path)
    assert open_model(linked).content_hash == first
    assert len(reads) == 1, "the file behind a link is the same file"

    config = folder / "config.json"
    text = config.read_text()
    config.write_text(text.replace("10000.0", "20000.0"))
    assert open_model(folder).content_hash != first
    config.write_text(text)
    assert open_model(folder).content_hash == first
    flip(folder / "model.safetensors", 5000)
    assert open_model(folder).content_hash != first
    assert open_model(linked).content_hash == open_model(folder).content_hash


def test_the_index_decides_which_tensor_is_meant(tmp_path: Path) -> None:
    folder = tiny.write_hf(tiny.llama(num_hidden_layers=1), tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    shutil.copy2(folder / "a.safetensors", folder / "b.safetensors")
    flip(folder / "b.safetensors", (folder / "b.safetensors").stat().st_size - 1)
    names = sorted(open_safetensors(folder / "a.safetensors").tensors)
    hashes = set()
    for chosen in range(3):
        places = {name: "b" if i == chosen else "a" for i, name in enumerate(names)}
        index = {"weight_map": {name: f"{at}.safetensors" for name, at in places.items()}}
        (folder / INDEX_NAME).write_text(json.dumps(index))
        hashes.add(open_model(folder).content_hash)
    assert len(hashes) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: b"",
        lambda entry: entry[:-1],
        lambda entry: entry + b"0",
        lambda entry: bytes(len(entry)),
        lambda entry: entry.replace(b" ", b"", 1),
        lambda entry: entry[:-70] + bytes([entry[-70] ^ 1]) + entry[-69:],
        lambda entry: b"\xff" * 10_000_000,
    ],
)
def test_a_damaged_memory_is_none(
    model: Path, caches: Path, reads: list[Path], damage: Callable[[bytes], bytes]
) -> None:
    first = open_model(model).content_hash
    (entry,) = (caches / "hashes").iterdir()
    entry.write_bytes(damage(entry.read_bytes()))
    assert open_model(model).content_hash == first
    assert open_model(model).content_hash == first
    assert reads == [model, model]


def test_a_memory_of_another_file_is_none(model: Path, caches: Path, reads: list[Path]) -> None:
    other = Path(shutil.copy2(model, model.with_name("other.gguf")))
    flip(other, other.stat().st_size - 1)
    first, second = (open_model(path).content_hash for path in (model, other))
    one, two = (caches / "hashes").iterdir()
    one.write_bytes(two.read_bytes())
    shutil.copy2(two, one)
    assert [open_model(path).content_hash for path in (model, other)] == [first, second]
    assert len(reads) == 3


def test_the_memory_is_bounded(model: Path, caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content, "MAX_FILES", 3)
    (caches / "hashes").mkdir(parents=True)
    (caches / "hashes" / "1-2.hashabc.unfinished").write_bytes(b"of a writer that died")
    for i in range(6):
        open_model(shutil.copy2(model, model.with_name(f"{i}.gguf"))).content_hash  # noqa: B018
    kept = sorted(path.name for path in (caches / "hashes").iterdir())
    assert len(kept) == 3
    inode = model.with_name("5.gguf").stat().st_ino
    assert any(name.endswith(f"-{inode:x}.hash") for name in kept)


def test_a_folder_that_cannot_be_written(
    model: Path, caches: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caches.write_text("a file")
    assert open_model(model).content_hash == open_model(model).content_hash
    assert "not remembered in" in caplog.text and "KVASIR_CACHE" in caplog.text


def test_what_changed_just_now_is_not_remembered(model: Path, reads: list[Path]) -> None:
    memory = HashMemory(model.parent / "hashes")
    now = open_gguf(model)
    for stamp, n_reads in (
        (now.stamp, 2),
        (replace(now.stamp, changed=now.stamp.seen - 1_999_999_999), 2),
        (replace(now.stamp, changed=now.stamp.seen + 10**15 + 1), 2),
        (replace(now.stamp, changed=(now.stamp.seen - 10**10) // COARSE * COARSE), 2),
        (replace(now.stamp, changed=(now.stamp.seen - 10**10) // COARSE * COARSE + 1), 1),
    ):
        reads.clear()
        file = with_fields(now, stamp=stamp)
        assert memory.hash_of(file) == memory.hash_of(file)
        assert len(reads) == n_reads, stamp


def test_a_file_that_changes_while_it_is_loaded(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changing(packer: Packer, use: WeightUse, *into: Any) -> Any:
        flip(model, model.stat().st_size - 1)
        return pack(packer, use, *into)

    pack = Packer.pack
    monkeypatch.setattr(Packer, "pack", changing)
    with pytest.raises(ModelError, match=r"m\.gguf changed while it was loaded: start again"):
        answer(model, tmp_path / "kept")
    for thread in threading.enumerate():
        if thread.name == "kvasir-packed":
            thread.join()
    assert not (tmp_path / "kept" / "packed").exists()
    with pytest.raises(ModelError, match="changed while it was loaded"):
        answer(model, None)


def test_a_file_that_is_replaced_while_it_is_loaded(model: Path) -> None:
    loaded = load_model(str(model))
    new = Path(shutil.copy2(model, model.with_name("new.gguf")))
    assert Stamp.of(new) != loaded.source.files[0].stamp
    new.replace(model)
    with pytest.raises(ModelError, match="changed while it was loaded"):
        build_engine(EngineOptions(model=str(model), packed_cache="off"), loaded=loaded)
    model.unlink()
    with pytest.raises(ModelError, match="changed while it was loaded"):
        loaded.source.check_unchanged()
