"""A GGUF file of another's metadata and tensors: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from kvasir.formats.gguf import MAGIC
from kvasir.formats.gguf_values import Reader, read_value
from kvasir.formats.mapped import TensorFile
from kvasir.formats.types import STORED, TensorInfo
from kvasir.quantize.filling import Piece, Told, WrittenTensors, copied, fill, opened
from kvasir.quantize.gguf_rows import Blocks, ImportantRows, Squares
from kvasir.quantize.mixtures import GgufMethod
from kvasir.quantize.target import MadeTensor, RowMethod
from kvasir.weights.source import ModelSource

_VERSION = 3
_UINT32, _STRING, _ARRAY = 4, 8, 9
_QUANTIZATION_VERSION = 2


def gguf_pieces(
    source: ModelSource, formats: Mapping[str, str], squares: Squares | None
) -> list[Piece]:
    """In the order of the tensors. ``formats``: of those that are quantized; ``squares``: the mean
    squares of what a tensor's columns meet, where a text says it."""

    def piece(x: TensorInfo) -> Piece:
        if x.name not in formats:
            return copied(x)
        of_format = formats[x.name]
        how: RowMethod = Blocks(of_format)
        if squares is not None:
            how = ImportantRows(x.name, of_format, squares)
        return Piece(x, how.targets(x.name, x.shape), how)

    return [piece(x) for x in source.files[0].tensors.listing()]


def write_gguf_file(
    path: Path,
    source: ModelSource,
    method: GgufMethod,
    pieces: Sequence[Piece],
    metadata: dict[str, str],
    record: WrittenTensors,
    told: Told,
) -> None:
    """All keys as they are, byte for byte, but those that say how weights are stored."""
    keys = _keys(source.files[0])
    keys |= {
        "general.file_type": number_entry("general.file_type", method.file_type),
        "general.quantization_version": number_entry(
            "general.quantization_version", _QUANTIZATION_VERSION
        ),
    }
    keys |= {name: text_entry(name, value) for name, value in metadata.items()}
    alignment = source.files[0].metadata.get("general.alignment", 32)
    assert isinstance(alignment, int)
    head, places, size = gguf_head(keys, [x for piece in pieces for x in piece.targets], alignment)
    with opened(path, head, size) as stream:
        fill(stream, pieces, places, source.release, record, told)


def gguf_head(
    keys: Mapping[str, bytes], targets: Sequence[MadeTensor], alignment: int = 32
) -> tuple[bytes, dict[str, int], int]:
    """What lies before the tensors, the place of each in the file, and its bytes."""
    places, infos, at = dict[str, int](), b"", 0
    for target in targets:
        places[target.name] = at
        dims = target.shape[::-1]
        kind = STORED[target.dtype].ggml_type
        infos += _bytes(target.name)
        infos += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, at)
        at += -(-target.n_bytes // alignment) * alignment
    head = MAGIC + struct.pack("<IQQ", _VERSION, len(places), len(keys))
    head += b"".join(keys.values()) + infos
    begin = -(-len(head) // alignment) * alignment
    return head, {name: begin + place for name, place in places.items()}, begin + at


def _keys(file: TensorFile) -> dict[str, bytes]:
    """Bytes of each entry of the metadata, its name included."""
    reader = Reader(file.path, file.mapping, len(file.mapping), len(MAGIC))
    reader.u32("version")
    reader.u64("tensor count")
    found = {}
    for _ in range(reader.u64("metadata count")):
        begin = reader.at
        name = reader.text("a key")
        read_value(reader, name)
        found[name] = file.mapping[begin : reader.at]
    return found


def _bytes(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def number_entry(name: str, value: int) -> bytes:
    """Of metadata."""
    return _bytes(name) + struct.pack("<II", _UINT32, value)


def text_entry(name: str, value: str) -> bytes:
    return _bytes(name) + struct.pack("<I", _STRING) + _bytes(value)


def texts_entry(name: str, values: Sequence[str]) -> bytes:
    head = _bytes(name) + struct.pack("<IIQ", _ARRAY, _STRING, len(values))
    return head + b"".join(map(_bytes, values))
