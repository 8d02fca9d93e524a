"""The GGUF reader: what is written comes back, and every kind of damage is named."""

import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from kvasir.core.errors import ModelError
from kvasir.formats.decode import decode, values_of
from kvasir.formats.gguf import open_gguf
from kvasir.formats.types import FORMATS
from tests.gguf_writer import ENCODERS, gguf_bytes, string, value, write_gguf

HEAD = b"GGUF" + struct.pack("<I", 3)
METADATA = {
    "general.architecture": "llama",
    "a.bool": True,
    "a.count": 7,
    "a.negative": -7,
    "a.large": 1 << 40,
    "a.real": 0.5,
    "a.names": ["x", "", "zürich"],
    "a.numbers": [1, 2, 3],
    "a.flags": [True, False],
    "a.empty": [],
    "a.double": np.float64(0.1),
    "a.byte": np.uint8(255),
}


def counts(n_tensors: int, n_keys: int) -> bytes:
    return HEAD + struct.pack("<QQ", n_tensors, n_keys)


def tensor(
    name: str = "w",
    shape: tuple[int, ...] = (32,),
    kind: int = 0,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    n = len(shape) if n_dims is None else n_dims
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", n, *shape, kind, offset)


def with_data(head: bytes, n_bytes: int) -> bytes:
    return head + bytes(-len(head) % 32) + bytes(n_bytes)


def test_metadata_comes_back(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", METADATA, {})
    file = open_gguf(tmp_path / "m.gguf")
    expected = {key: tuple(v) if isinstance(v, list) else v for key, v in METADATA.items()}
    assert file.metadata == expected
    assert file.metadata["a.bool"] is True
    assert file.metadata["a.flags"] == (True, False)
    assert len(file.tensors) == 0


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("alignment", [8, 32, 256])
def test_tensors_come_back(tmp_path: Path, version: int, alignment: int) -> None:
    rng = np.random.default_rng(version)
    arrays = {name: rng.standard_normal((3, 64)).astype(np.float32) for name in ENCODERS}
    tensors = {f"t.{name}": (name, array) for name, array in arrays.items()}
    (tmp_path / "m.gguf").write_bytes(gguf_bytes({}, tensors, alignment, version))
    file = open_gguf(tmp_path / "m.gguf")
    for name, array in arrays.items():
        info = file.tensors[f"t.{name}"]
        assert (info.name, info.format, info.shape) == (f"t.{name}", name, (3, 64))
        assert info.data.nbytes == FORMATS[name].n_bytes((3, 64))
        bits = {"F32": 24, "F16": 11, "BF16": 8, "Q8_0": 7, "Q4_0": 3, "Q4_1": 3.5}[name]
        assert np.abs(values_of(info) - array).max() <= np.abs(array).max() * 2.0**-bits


def test_decoders_agree_with_the_format_by_hand(tmp_path: Path) -> None:
    half = np.float16([0.5, -2.0]).tobytes()
    packed = bytes(range(16))
    assert decode("Q8_0", np.frombuffer(half[:2] + bytes([255]) * 32, np.uint8))[0] == -0.5
    q4_0 = decode("Q4_0", np.frombuffer(half[:2] + bytes([0x9F]) * 16, np.uint8))
    assert q4_0.tolist() == [3.5] * 16 + [0.5] * 16
    q4_1 = decode("Q4_1", np.frombuffer(half + packed, np.uint8))
    assert q4_1.tolist() == [0.5 * i - 2 for i in range(16)] + [-2.0] * 16
    bf16 = decode("BF16", np.frombuffer(b"\xc0\x3f", np.uint8))
    assert bf16.tolist() == [1.5]


def test_shapes_are_outermost_first_and_data_is_read_only(tmp_path: Path) -> None:
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    write_gguf(tmp_path / "m.gguf", {}, {"w": ("F32", weights)})
    info = open_gguf(tmp_path / "m.gguf").tensors["w"]
    assert info.shape == (2, 3)
    assert values_of(info).tolist() == weights.tolist()
    assert info.data.readonly


DAMAGE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "other magic": (b"GGML" + bytes(60), "not a GGUF file"),
    "short magic": (b"GG", "not a GGUF file"),
    "no version": (b"GGUF", "version"),
    "version 1": (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "192 bytes of ones": (b"GGUF" + struct.pack("<I", 3) + b"\xff" * 184, "tensor count"),
    "2^63 keys": (counts(0, 1 << 63), "metadata count"),
    "2^63 tensors": (counts(1 << 63, 0), "tensor count"),
    "2^60 keys": (counts(0, 1 << 60) + bytes(99), "metadata count"),
    "key length overflow": (counts(0, 1) + struct.pack("<Q", (1 << 64) - 8) + bytes(40), "key"),
    "long key": (counts(0, 1) + string("k" * 70000) + value(1), "65535"),
    "key is not text": (counts(0, 1) + struct.pack("<Q", 1) + b"\xff" + value(1), "UTF-8"),
    "twice the same key": (
        counts(0, 2) + 2 * (string("a.key") + value(1)),
        "'a.key' appears twice",
    ),
    "unknown value type": (counts(0, 1) + string("a.key") + struct.pack("<IQ", 13, 0), "'a.key'"),
    "value cut": (counts(0, 1) + string("a.key") + struct.pack("<I", 10), "'a.key'"),
    "string length overflow": (
        counts(0, 1) + string("a.key") + struct.pack("<IQ", 8, (1 << 64) - 1),
        "'a.key'",
    ),
    "string is not text": (
        counts(0, 1) + string("a.key") + struct.pack("<IQ", 8, 2) + b"\xc3\x28",
        "'a.key' is not valid UTF-8",
    ),
    "bool of 2": (counts(0, 1) + string("a.key") + struct.pack("<IB", 7, 2), "'a.key'"),
    "2^62 numbers": (
        counts(0, 1) + string("a.key") + struct.pack("<IIQ", 9, 10, 1 << 62),
        "'a.key'",
    ),
    "2^61 strings": (
        counts(0, 1) + string("a.key") + struct.pack("<IIQ", 9, 8, 1 << 61) + bytes(64),
        "'a.key'",
    ),
    "second string overflows": (
        counts(0, 1) + string("a.key") + struct.pack("<IIQ", 9, 8, 2) + string("x") + b"\xff" * 8,
        "'a.key'[1]",
    ),
    "second string is cut": (
        counts(0, 1) + string("a.key") + struct.pack("<IIQ", 9, 8, 2) + string("x" * 9) + bytes(3),
        "'a.key'[1]",
    ),
    "array of arrays": (
        counts(0, 1) + string("a.key") + struct.pack("<IIQ", 9, 9, 1) + bytes(32),
        "array of arrays",
    ),
    "array of an unknown type": (
        counts(0, 1) + string("a.key") + struct.pack("<IIQ", 9, 77, 1) + bytes(32),
        "77",
    ),
    "alignment 2^31": (
        counts(0, 1) + string("general.alignment") + value(1 << 31),
        "general.alignment",
    ),
    "alignment 0": (counts(0, 1) + string("general.alignment") + value(0), "general.alignment"),
    "alignment 24": (counts(0, 1) + string("general.alignment") + value(24), "general.alignment"),
    "alignment text": (counts(0, 1) + string("general.alignment") + value("32"), "alignment"),
    "alignment of bool": (counts(0, 1) + string("general.alignment") + value(True), "alignment"),
    "no dimensions": (with_data(counts(1, 0) + tensor(shape=()), 128), "0 dimensions"),
    "five dimensions": (with_data(counts(1, 0) + tensor(shape=(1,) * 5), 128), "5 dimensions"),
    "2^32 - 1 dimensions": (
        with_data(counts(1, 0) + tensor(n_dims=0xFFFFFFFF), 128),
        "4294967295 dimensions",
    ),
    "ne = 0": (with_data(counts(1, 0) + tensor(shape=(0, 4)), 128), "impossible shape"),
    "shape overflow": (
        with_data(counts(1, 0) + tensor(shape=(1 << 33, 1 << 33)), 128),
        "impossible shape",
    ),
    "shape overflow to a small product": (
        with_data(counts(1, 0) + tensor(shape=((1 << 63) + 4, 2)), 128),
        "impossible shape",
    ),
    "large shape": (with_data(counts(1, 0) + tensor(shape=(1 << 40,)), 128), "'w' needs"),
    "unknown tensor type": (with_data(counts(1, 0) + tensor(kind=99), 128), "unknown type 99"),
    "rows of half a block": (
        with_data(counts(1, 0) + tensor(shape=(48, 2), kind=2), 128),
        "multiples of 32",
    ),
    "offset past the end": (with_data(counts(1, 0) + tensor(offset=1 << 62), 128), "'w' starts"),
    "offset not aligned": (with_data(counts(1, 0) + tensor(offset=4), 256), "multiple of 32"),
    "data cut": (with_data(counts(1, 0) + tensor(), 127), "'w' needs 128 bytes"),
    "no data at all": (counts(1, 0) + tensor(), "'w'"),
    "overlap": (
        with_data(counts(2, 0) + tensor("a") + tensor("b", offset=96), 512),
        "'a' and 'b' overlap",
    ),
    "same place": (with_data(counts(2, 0) + tensor("a") + tensor("b"), 512), "overlap"),
    "twice the same tensor": (
        with_data(counts(2, 0) + tensor() + tensor(offset=128), 512),
        "'w' appears twice",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    data, message = DAMAGE[name]
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    tracemalloc.start()
    try:
        with pytest.raises(ModelError) as caught:
            open_gguf(path)
        assert tracemalloc.get_traced_memory()[1] < len(data) + 64 * 1024
    finally:
        tracemalloc.stop()
    assert message in caught.value.message
    assert str(path) in caught.value.message


def test_every_truncation_is_an_error(tmp_path: Path) -> None:
    whole = gguf_bytes(METADATA, {"w": ("Q4_0", np.ones((2, 32), np.float32))})
    path = tmp_path / "m.gguf"
    last = len(whole) - 28  # 36 bytes of data, padded to 64
    for n in range(1, last):
        path.write_bytes(whole[:n])
        with pytest.raises(ModelError):
            open_gguf(path)
    path.write_bytes(whole[:last])
    assert values_of(open_gguf(path).tensors["w"]).tolist() == [[1.0] * 32] * 2


def test_known_types_without_support_are_named_when_used(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(with_data(counts(1, 0) + tensor("blk.0.ffn", (256,), kind=9), 288))
    tensors = open_gguf(path).tensors
    assert [(info.name, info.format) for info in tensors.listing()] == [("blk.0.ffn", "Q8_1")]
    assert "blk.0.ffn" in tensors
    with pytest.raises(ModelError, match=r"'blk\.0\.ffn' has type Q8_1.*supported: F32"):
        tensors["blk.0.ffn"]


@pytest.mark.parametrize("make", [lambda path: path.mkdir(), lambda path: None])
def test_path_without_file(tmp_path: Path, make: Callable[[Path], None]) -> None:
    path = tmp_path / "m.gguf"
    make(path)
    with pytest.raises(ModelError, match=r"m\.gguf"):
        open_gguf(path)
