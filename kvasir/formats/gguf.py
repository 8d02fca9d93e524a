"""GGUF versions 2 and 3, little-endian: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.

Every count, length and offset is checked against the bytes that are left before anything is
allocated or sliced; Python's integers cannot overflow; nothing recurses (arrays of arrays are
refused).
"""

from __future__ import annotations

import itertools
import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats.mapped import TensorFile, TensorTable, byte_view, map_file
from kvasir.formats.types import FORMATS, GGML_TYPES, Bytes, TensorInfo

MAGIC = b"GGUF"
_MAX_NAME = 65535
_MAX_DIMS = 4
_MAX_ALIGNMENT = 1 << 16
_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", _BOOL: "<u1",
            10: "<u8", 11: "<i8", 12: "<f8"}  # fmt: skip
_MIN_KEY_BYTES = 8 + 4 + 1
_MIN_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def open_gguf(path: Path) -> TensorFile:
    """Map and parse ``path``; arrays become tuples. Raises ModelError naming field or tensor."""
    mapping = map_file(path)
    if mapping[:4] != MAGIC:
        raise ModelError(
            f"{path} is not a GGUF file: it starts with {mapping[:4]!r} instead of {MAGIC!r}"
        )
    return _parse(_Reader(path, mapping, len(mapping), 4))


@dataclass(slots=True)
class _Reader:
    """A cursor that cannot leave the file."""

    path: Path
    data: mmap.mmap
    size: int
    at: int

    def fail(self, what: str) -> ModelError:
        return ModelError(f"{self.path}: {what}")

    def take(self, n: int, field: str) -> int:
        """Advance by ``n`` bytes; where they start."""
        start = self.at
        if n > self.size - start:
            raise self.fail(
                f"{field} needs {n} bytes at byte {start}, the file has {self.size - start} left: "
                "it is truncated or corrupt, download it again"
            )
        self.at = start + n
        return start

    def u32(self, field: str) -> int:
        return int(_U32.unpack_from(self.data, self.take(4, field))[0])

    def u64(self, field: str) -> int:
        return int(_U64.unpack_from(self.data, self.take(8, field))[0])

    def count(self, field: str, min_bytes: int) -> int:
        """A 64-bit number of things that take at least ``min_bytes`` each."""
        n = self.u64(field)
        if n * min_bytes > self.size - self.at:
            raise self.fail(
                f"{field} is {n}, but the file has only {self.size - self.at} bytes left"
            )
        return n

    def text(self, field: str, limit: int | None = None) -> str:
        n = self.u64(f"the length of {field}")
        if limit is not None and n > limit:
            raise self.fail(f"{field} is {n} bytes long, at most {limit} are allowed")
        start = self.take(n, field)
        try:
            return str(self.data[start : start + n], "utf-8")
        except UnicodeDecodeError:
            raise self.fail(f"{field} is not valid UTF-8") from None


def _parse(reader: _Reader) -> TensorFile:
    version = reader.u32("version")
    if version not in (2, 3):
        kind = "big-endian" if version & 0xFFFF == 0 else f"version {version}"
        raise reader.fail(
            f"GGUF {kind} is not supported, little-endian version 2 or 3 is: convert it again"
        )
    n_tensors = reader.count("tensor count", _MIN_TENSOR_BYTES)
    n_keys = reader.count("metadata count", _MIN_KEY_BYTES)
    metadata: dict[str, object] = {}
    for i in range(n_keys):
        key = reader.text(f"the key of metadata entry {i}", _MAX_NAME)
        if key in metadata:
            raise reader.fail(f"metadata key '{key}' appears twice")
        metadata[key] = _value(reader, key)
    entries = [_entry(reader, i) for i in range(n_tensors)]
    alignment = _alignment(reader, metadata)
    data_start = (reader.at + alignment - 1) // alignment * alignment
    view = byte_view(reader.data)
    return TensorFile(
        path=reader.path,
        tensors=TensorTable(_place(reader, entries, view[data_start:], alignment)),
        metadata=metadata,
        header=view[: reader.at],
        n_bytes=reader.size,
        mapping=reader.data,
    )


def _alignment(reader: _Reader, metadata: Mapping[str, object]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is int and 1 <= alignment <= _MAX_ALIGNMENT and alignment.bit_count() == 1:
        return alignment
    raise reader.fail(
        f"general.alignment is {alignment!r}, expected a power of two up to {_MAX_ALIGNMENT}"
    )


def _value(reader: _Reader, key: str) -> object:
    kind = reader.u32(f"the type of '{key}'")
    if kind == _STRING:
        return reader.text(f"'{key}'")
    if kind != _ARRAY:
        return _numbers(reader, key, kind, 1)[0]
    kind = reader.u32(f"the element type of '{key}'")
    if kind == _STRING:
        return _strings(reader, key, reader.count(f"the length of '{key}'", 8))
    if kind == _ARRAY:
        raise reader.fail(f"'{key}' is an array of arrays, which is not supported")
    return _numbers(reader, key, kind, reader.u64(f"the length of '{key}'"))


def _numbers(reader: _Reader, key: str, kind: int, n: int) -> tuple[object, ...]:
    if kind not in _NUMBERS:
        raise reader.fail(f"'{key}' has the unknown value type {kind}")
    dtype = np.dtype(_NUMBERS[kind])
    start = reader.take(n * dtype.itemsize, f"'{key}'")
    array = np.frombuffer(reader.data, dtype, n, start) if n else np.empty(0, dtype)
    if kind != _BOOL:
        return tuple(array.tolist())
    if (array > 1).any():
        raise reader.fail(f"'{key}' holds a byte other than 0 and 1 as a bool")
    return tuple(array.astype(bool).tolist())


def _strings(reader: _Reader, key: str, n: int) -> tuple[str, ...]:
    """One tight loop: 49,152 tokens take 14 ms."""
    data, at, size, unpack = reader.data, reader.at, reader.size, _U64.unpack_from
    texts: list[str] = []
    try:
        for _ in range(n):
            end = at + 8 + unpack(data, at)[0]
            if end > size:
                raise reader.fail(
                    f"'{key}'[{len(texts)}] ends at byte {end}, the file at byte {size}"
                )
            texts.append(str(data[at + 8 : end], "utf-8"))
            at = end
    except struct.error:
        raise reader.fail(
            f"'{key}'[{len(texts)}] starts at byte {at}, the file ends at {size}"
        ) from None
    except UnicodeDecodeError:
        raise reader.fail(f"'{key}'[{len(texts)}] is not valid UTF-8") from None
    reader.at = at
    return tuple(texts)


class _Entry(NamedTuple):
    """A tensor's line in the header; ``format`` is "" when its size cannot be known here."""

    name: str
    format: str
    shape: tuple[int, ...]
    offset: int


def _entry(reader: _Reader, i: int) -> _Entry:
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
    return _Entry(name, GGML_TYPES[kind], shape, offset)


def _place(
    reader: _Reader, entries: list[_Entry], data: Bytes, alignment: int
) -> dict[str, TensorInfo]:
    """Cut the data section; tensors may not share a byte or leave the file."""
    spans: list[tuple[int, int, str]] = []
    tensors: dict[str, TensorInfo] = {}
    for name, format_name, shape, offset in entries:
        if name in tensors:
            raise reader.fail(f"tensor '{name}' appears twice")
        if offset % alignment or offset > data.size:
            raise reader.fail(
                f"tensor '{name}' starts at byte {offset} of {data.size} data bytes, "
                f"expected a multiple of {alignment} inside the file"
            )
        n_bytes = _n_bytes(reader, name, format_name, shape)
        if n_bytes > data.size - offset:
            raise reader.fail(
                f"tensor '{name}' needs {n_bytes} bytes, the file has {data.size - offset} left "
                "for it: it is truncated, download it again"
            )
        spans.append((offset, offset + n_bytes, name))
        tensors[name] = TensorInfo(name, format_name, shape, data[offset : offset + n_bytes])
    spans.sort()
    for (_, end, name), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            raise reader.fail(f"tensors '{name}' and '{other}' overlap in the file")
    return tensors


def _n_bytes(reader: _Reader, name: str, format_name: str, shape: tuple[int, ...]) -> int:
    """0 for formats of unknown size, which can be listed and not read."""
    if format_name not in FORMATS:
        return 0
    layout = FORMATS[format_name]
    if shape[-1] % layout.block:
        raise reader.fail(
            f"tensor '{name}' has rows of {shape[-1]} elements, "
            f"{format_name} needs multiples of {layout.block}"
        )
    return layout.n_bytes(shape)
