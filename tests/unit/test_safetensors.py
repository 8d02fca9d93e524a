"""The safetensors reader: single files and sharded folders, and every kind of damage named."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from kvasir.core.errors import ModelError
from kvasir.formats.decode import values_of
from kvasir.formats.safetensors import open_folder, open_safetensors
from tests.gguf_writer import safetensors_bytes, write_safetensors

ONES = np.ones((2, 3), np.float32)


def raw(header: object, n_data: int = 0) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(n_data)


def entry(
    dtype: object = "F32", shape: object = (2,), offsets: object = (0, 8)
) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
def test_tensors_come_back(tmp_path: Path, dtype: str) -> None:
    arrays = {"a": ONES * 1.5, "scalar": np.float32(-2.0), "b": ONES[0]}
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes(arrays, dtype, {"format": "pt"}))
    file = open_safetensors(path)
    assert file.metadata == {"format": "pt"}
    for name, array in arrays.items():
        info = file.tensors[name]
        assert (info.format, info.shape) == (dtype, np.shape(array))
        assert values_of(info).tolist() == np.asarray(array).tolist()
        assert info.data.readonly


def test_unaligned_data_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    header = {"odd": entry("U8", [1], [0, 1]), "w": entry("F32", [2], [1, 9])}
    path.write_bytes(raw(header) + b"\0" + np.float32([1.5, -3]).tobytes())
    file = open_safetensors(path)
    assert values_of(file.tensors["w"]).tolist() == [1.5, -3]
    with pytest.raises(ModelError, match="'odd' has type U8, which is not supported"):
        file.tensors["odd"]


DAMAGE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty"),
    "seven bytes": (bytes(7), "7 bytes"),
    "header length 2^63": (struct.pack("<Q", 1 << 63) + bytes(64), "9223372036854775808"),
    "header longer than the file": (
        struct.pack("<Q", 65) + b"{" + b" " * 63,
        "header length is 65",
    ),
    "header is not JSON": (raw(b"{nonsense"), "not valid JSON"),
    "header is not text": (raw(b'{"\xff": 1}'), "not valid JSON"),
    "header is a list": (raw([]), "list"),
    "header is deep": (raw(b"[" * 200000), "nested"),
    "huge number": (raw(b'{"w": ' + b"9" * 5000 + b"}"), "not valid JSON"),
    "twice the same tensor": (raw(b'{"w": {}, "w": {}}'), "'w' appears twice"),
    "metadata is text": (raw({"__metadata__": "x"}), "__metadata__"),
    "entry is a number": (raw({"w": 1}), "'w' needs shape"),
    "no dtype": (raw({"w": {"shape": [2], "data_offsets": [0, 8]}}, 8), "dtype"),
    "unknown dtype": (raw({"w": entry("F33")}, 8), "F33"),
    "dtype is a list": (raw({"w": entry(["F32"])}, 8), "dtype"),
    "wrong dtype size": (raw({"w": entry("F16")}, 8), "needs 4 bytes"),
    "negative size": (raw({"w": entry(shape=[-2])}, 8), "impossible shape"),
    "size of text": (raw({"w": entry(shape=["2"])}, 8), "impossible shape"),
    "size of bool": (raw({"w": entry(shape=[True])}, 8), "impossible shape"),
    "shape overflow": (raw({"w": entry(shape=[1 << 62, 1 << 62, 4])}, 8), "needs"),
    "2^64": (raw({"w": entry(shape=[1 << 64])}, 8), "impossible shape"),
    "many sizes": (raw({"w": entry(shape=[1] * 9)}, 8), "at most 8"),
    "one offset": (raw({"w": entry(offsets=[0])}, 8), "data_offsets"),
    "offsets reversed": (raw({"w": entry(offsets=[8, 0])}, 8), "data_offsets"),
    "past the end": (raw({"w": entry(offsets=[8, 16])}, 8), "'w' ends at byte 16"),
    "hole": (raw({"w": entry(offsets=[8, 16])}, 16), "hole"),
    "rest": (raw({"w": entry()}, 9), "9 data bytes"),
    "overlap": (
        raw({"a": entry(), "b": entry(offsets=[4, 12])}, 12),
        "'b' starts at byte 4 and overlaps",
    ),
    "same place": (raw({"a": entry(), "b": entry()}, 8), "overlaps"),
    "cut": (safetensors_bytes({"w": ONES})[:-1], "'w' ends"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    data, message = DAMAGE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        open_safetensors(path)
    assert message in caught.value.message
    assert str(path) in caught.value.message


def shards(folder: Path, places: object) -> Path:
    write_safetensors(folder / "one.safetensors", {"a": ONES, "spare": ONES})
    write_safetensors(folder / "two.safetensors", {"b": ONES * 2})
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_shards_are_one_table(tmp_path: Path) -> None:
    tensors, files = open_folder(shards(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}))
    assert set(tensors) == {"a", "b"}
    assert values_of(tensors["b"]).tolist() == (ONES * 2).tolist()
    assert [file.path.name for file in files] == ["one.safetensors", "two.safetensors"]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"a": "../one.safetensors"}, "'../one.safetensors'"),
        ({"a": "/etc/one.safetensors"}, "'/etc/one.safetensors'"),
        ({"a": "sub\\one.safetensors"}, "expected the name"),
        ({"a": "one.bin"}, "'one.bin'"),
        ({"a": ".safetensors"}, "'.safetensors'"),
        ({"a": "o\0.safetensors"}, "expected the name"),
        ({"a": 1}, "1"),
        ({"a": "three.safetensors"}, "three.safetensors does not exist"),
        ({"b": "one.safetensors"}, "'b' in one.safetensors"),
        ([], "weight_map"),
        (None, "weight_map"),
    ],
)
def test_bad_index_is_named(tmp_path: Path, places: object, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        open_folder(shards(tmp_path, places))
    assert message in caught.value.message


def test_linked_shards_are_read(tmp_path: Path) -> None:
    blobs, folder = tmp_path / "blobs", tmp_path / "snapshot"
    blobs.mkdir()
    folder.mkdir()
    write_safetensors(blobs / "0123", {"a": ONES})
    (folder / "model.safetensors").symlink_to(blobs / "0123")
    assert open_folder(folder)[0]["a"].shape == (2, 3)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "m.pkl"])
def test_pickled_weights_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x80\x04.")
    with pytest.raises(ModelError, match="pickled") as caught:
        open_folder(tmp_path)
    assert name in caught.value.message
    assert caught.value.code == "unsafe_format"


def test_folder_without_weights(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("no weights")
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        open_folder(tmp_path)
