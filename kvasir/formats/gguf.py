"""GGUF versions 2 and 3, little-endian: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

Every count, length and offset is checked against the bytes that are left before anything is
allocated or sliced; Python's integers cannot overflow; nothing recurses (arrays of arrays are
refused).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kvasir.core.errors import ModelError
from kvasir.formats.gguf_values import ArrayAt, Metadata, Reader, read_value
from kvasir.formats.mapped import Stamp, TensorFile, TensorTable, byte_view, map_file
from kvasir.formats.types import BESIDE_FORMATS, FORMATS, GGML_TYPES, TensorInfo

MAGIC = b"GGUF"
_MAX_NAME = 65535
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 16
_MIN_KEY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


def open_gguf(path: Path) -> TensorFile:
    """Map and parse ``path``. Arrays of the metadata are tuples, decoded when they are looked up.

    Raises ModelError naming field or tensor, now or at such a look-up.
    """
    mapping, stamp = map_file(path)
    if mapping[:4] != MAGIC:
        raise ModelError(
            f"{path} is not a GGUF file: it starts with {mapping[:4]!r} instead of {MAGIC!r}"
        )
    return _parse(Reader(path, mapping, len(mapping), 4), stamp)


def _parse(reader: Reader, stamp: Stamp) -> TensorFile:
    version = reader.u32("version")
    if version not in (2, 3):
        kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
        raise reader.fail(
            f"GGUF {kind} is not supported, little-endian version 2 or 3 is: convert it again"
        )
    n_tensors = reader.count("tensor count", _MIN_TENSOR_BYTES)
    n_keys = reader.count("metadata count", _MIN_KEY_BYTES)
    values: dict[str, object | ArrayAt] = {}
    for i in range(n_keys):
        key = reader.text(f"the key of metadata entry {i}", _MAX_NAME)
        if key in values:
            raise reader.fail(f"metadata key '{key}' appears twice")
        values[key] = read_value(reader, key)
    metadata = Metadata(reader, values)
    entries = [_entry(reader, i) for i in range(n_tensors)]
    alignment = _alignment(reader, metadata)
    data_start = (reader.at + alignment - 1) // alignment * alignment
    view = byte_view(reader.data)
    return TensorFile(
        path=reader.path,
        tensors=TensorTable(_place(reader, entries, view[data_start:], alignment)),
        metadata=metadata,
        mapping=reader.data,
        stamp=stamp,
        data_start=data_start,
    )


def _alignment(reader: Reader, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is int and 1 <= alignment <= _MAX_ALIGNMENT and alignment.bit_count() == 1:
        return alignment
    raise reader.fail(
        f"general.alignment is {alignment!r}, expected a power of two up to {_MAX_ALIGNMENT}"
    )


class _TensorEntry(NamedTuple):
    """A tensor's line in the header; ``format`` is "" when its size cannot be known here."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int


def _entry(reader: Reader, i: int) -> _TensorEntry:
    name = reader.text(f"the name of tensor {i}", _MAX_NAME)
    n_dims = reader.u32(f"the dimension count of tensor '{name}'")
    if not 1 <= n_dims <= _MAX_DIMS:
        raise reader.fail(f"tensor '{name}' has {n_dims} dimensions, expected 1 to {_MAX_DIMS}")
    shape = tuple(reader.u64(f"the shape of tensor '{name}'") for _ in range(n_dims))[::-1]
    kind = reader.u32(f"the type of tensor '{name}'")
    offset = reader.u64(f"the offset of tensor '{name}'")
    if kind not in GGML_TYPES:
        raise reader.fail(
            f"tensor '{name}' has the unknown type {kind}: the file is corrupt or too new"
        )
    if not 1 <= math.prod(shape) < 1 << 63:
        raise reader.fail(f"tensor '{name}' has the impossible shape {shape}")
    return _TensorEntry(name, GGML_TYPES[kind], shape, offset)


def _place(
    reader: Reader, entries: list[_TensorEntry], data: memoryview, alignment: int
) -> dict[str, TensorInfo]:
    """Cut the data section; tensors may not share a byte or leave the file."""
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, TensorInfo] = {}
    for name, format_name, shape, offset in entries:
        if name in tensors:
            raise reader.fail(f"tensor '{name}' appears twice")
        if offset % alignment or offset > data.nbytes:
            raise reader.fail(
                f"tensor '{name}' starts at byte {offset} of {data.nbytes} data bytes, "
                f"expected a multiple of {alignment} inside the file"
            )
        n_bytes = _n_bytes(reader, name, format_name, shape)
        if n_bytes > data.nbytes - offset:
            raise reader.fail(
                f"tensor '{name}' needs {n_bytes} bytes, the file has {data.nbytes - offset} left "
                "for it: it is truncated, download it again"
            )
        spans.append((offset, offset + n_bytes, name))
        tensors[name] = TensorInfo(name, format_name, shape, data[offset : offset + n_bytes])
    spans.sort()
    for (_, end, name), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise reader.fail(f"tensors '{name}' and '{other}' overlap in the file")
    return tensors


def _n_bytes(reader: Reader, name: str, format_name: str, shape: tuple[int, ...]) -> int:
    """0 for formats of unknown size, which can be listed and not read."""
    layout = FORMATS.get(format_name) or BESIDE_FORMATS.get(format_name)
    if layout is None:
        return 0
    if shape[-1] % layout.block:
        raise reader.fail(
            f"tensor '{name}' has rows of {shape[-1]} elements, "
            f"{format_name} needs multiples of {layout.block}"
        )
    return layout.n_bytes(shape)
