"""safetensors, one file or a sharded folder: https://github.com/huggingface/safetensors#format."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from kvasir.core.errors import ModelError
from kvasir.formats.jsonfile import parse_object, read_object
from kvasir.formats.mapped import TensorFile, TensorTable, byte_view, map_file
from kvasir.formats.types import TensorInfo

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_MAX_HEADER = 32 << 20
_MAX_INDEX = 64 << 20
_MAX_DIMS = 8
_ITEM_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8,
    "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "C64": 8,
}  # fmt: skip
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt", ".pickle")


def refuse_pickle(path: Path) -> None:
    """Raises ModelError for names of pickled checkpoints: loading one would run the code inside."""
    if path.suffix.lower() in _PICKLES:
        raise ModelError(
            f"{path} is a pickled checkpoint, which can run any code when loaded, and is refused: "
            "use the model's safetensors or GGUF files",
            code="unsafe_format",
        )


def open_safetensors(path: Path) -> TensorFile:
    """Map and parse one file. Raises ModelError naming the field or tensor."""
    refuse_pickle(path)
    mapping, stamp = map_file(path)
    view = byte_view(mapping)
    if view.nbytes < 8:
        raise ModelError(
            f"{path} has {view.nbytes} bytes, a safetensors file has at least 8: download it again"
        )
    n_header = int.from_bytes(view[:8].tobytes(), "little")
    if n_header > min(_MAX_HEADER, view.nbytes - 8):
        raise ModelError(
            f"{path}: the header length is {n_header}, the file has {view.nbytes - 8} bytes left "
            f"and at most {_MAX_HEADER} are allowed: it is truncated or no safetensors file"
        )
    header = parse_object(view[8 : 8 + n_header].tobytes(), f"the header of {path}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict):
        raise ModelError(f"{path}: __metadata__ is not an object")
    return TensorFile(
        path=path,
        tensors=TensorTable(_place(path, header, view[8 + n_header :])),
        metadata=metadata,
        mapping=mapping,
        stamp=stamp,
    )


def _place(path: Path, header: Mapping[str, object], data: memoryview) -> dict[str, TensorInfo]:
    """Cut the data section. The spans must cover it exactly, as the format says."""
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, TensorInfo] = {}
    for name, entry in header.items():
        dtype, shape, begin, end = _entry(path, name, entry)
        if end > data.nbytes:
            raise ModelError(
                f"{path}: tensor '{name}' ends at byte {end} of {data.nbytes} data bytes: "
                "it is truncated, download it again"
            )
        spans.append((begin, end, name))
        tensors[name] = TensorInfo(name, dtype, shape, data[begin:end])
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            what = "overlaps the one before" if begin < at else "leaves a hole before it"
            raise ModelError(
                f"{path}: tensor '{name}' starts at byte {begin} and {what}, expected {at}"
            )
        at = end
    if at != data.nbytes:
        raise ModelError(f"{path}: the tensors end at byte {at} of {data.nbytes} data bytes")
    return tensors


def _entry(path: Path, name: str, entry: object) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, begin, end) of one header entry."""
    fields = entry if isinstance(entry, dict) else {}
    dtype = fields.get("dtype")
    shape = _sizes(path, name, "shape", fields.get("shape"))
    offsets = _sizes(path, name, "data_offsets", fields.get("data_offsets"))
    if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
        raise ModelError(f"{path}: tensor '{name}' has the unknown dtype {dtype!r}")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelError(f"{path}: tensor '{name}' has the impossible data_offsets {list(offsets)}")
    n_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
    if n_bytes != offsets[1] - offsets[0]:
        raise ModelError(
            f"{path}: tensor '{name}' of shape {list(shape)} and dtype {dtype} needs {n_bytes} "
            f"bytes, data_offsets give it {offsets[1] - offsets[0]}"
        )
    return dtype, shape, *offsets


def _sizes(path: Path, name: str, field: str, value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_DIMS:
        raise ModelError(
            f"{path}: tensor '{name}' needs {field}, a list of at most {_MAX_DIMS} numbers"
        )
    if not all(type(item) is int and 0 <= item < 1 << 63 for item in value):
        raise ModelError(f"{path}: tensor '{name}' has the impossible {field} {value}")
    return tuple(value)


def open_folder(folder: Path) -> tuple[TensorTable, list[TensorFile]]:
    """All tensors of a Hugging Face folder, and the files they lie in.

    Raises ModelError when there is no safetensors file, a shard is missing or named outside the
    folder, or the index does not agree with the shards.
    """
    if (folder / SINGLE_NAME).exists():
        file = open_safetensors(folder / SINGLE_NAME)
        return file.tensors, [file]
    if not (folder / INDEX_NAME).exists():
        raise _no_weights(folder)
    places = _weight_map(folder)
    files = {shard: open_safetensors(folder / shard) for shard in sorted(set(places.values()))}
    contents = {
        shard: {info.name: info for info in file.tensors.listing()} for shard, file in files.items()
    }
    for name, shard in places.items():
        if name not in contents[shard]:
            raise ModelError(
                f"{folder / INDEX_NAME} places tensor '{name}' in {shard}, which lacks it"
            )
    return TensorTable({name: contents[shard][name] for name, shard in places.items()}), list(
        files.values()
    )


def _weight_map(folder: Path) -> dict[str, str]:
    """Tensor name -> shard, every shard a plain file name."""
    places = read_object(folder / INDEX_NAME, _MAX_INDEX).get("weight_map")
    if not isinstance(places, dict):
        raise ModelError(f"{folder / INDEX_NAME}: weight_map is missing or not an object")
    for shard in places.values():
        if not isinstance(shard, str) or not _is_plain_name(shard):
            raise ModelError(
                f"{folder / INDEX_NAME}: weight_map names the shard {shard!r}, "
                "expected the name of a .safetensors file in the same folder"
            )
    return places


def _is_plain_name(name: str) -> bool:
    """HF caches link shards to blobs elsewhere, so links are followed: names must not escape."""
    return (
        name.endswith(".safetensors")
        and not any(char in "/\\:\0" for char in name)
        and name[0] != "."
    )


def _no_weights(folder: Path) -> ModelError:
    for path in sorted(folder.iterdir()):
        try:
            refuse_pickle(path)
        except ModelError as error:
            return error
    return ModelError(
        f"{folder} holds neither {SINGLE_NAME} nor {INDEX_NAME}: "
        "download the model's safetensors files",
        code="model_not_found",
    )
