"""Values of GGUF metadata: scalars are read at once, arrays when they are looked up.

A vocabulary of 150,000 tokens and its merges take 0.1 s and 30 MB to decode, which a process that
needs no text is spared.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvasir.core.errors import ModelError

_BOOL, _STRING, _ARRAY = 7, 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", _BOOL: "B", 10: "Q", 11: "q",
            12: "d"}  # fmt: skip
"""Codes of ``struct``, of little-endian numbers."""
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(slots=True)
class Reader:
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


class ArrayAt(msgspec.Struct, frozen=True):
    """An array in the file: element type, length, and where its bytes are, inside the file."""

    kind: int
    n: int
    start: int
    end: int


class Metadata(Mapping[str, object]):
    """Metadata by key. An array is decoded at each look-up and not kept.

    Looking up an array raises ModelError when its strings are not UTF-8 or its bools not 0 or 1.
    """

    def __init__(self, reader: Reader, values: Mapping[str, object | ArrayAt]) -> None:
        self._reader = reader
        self._values = values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if not isinstance(value, ArrayAt):
            return value
        decode = _decode_strings if value.kind == _STRING else _decode_numbers
        return decode(self._reader, key, value)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def read_value(reader: Reader, key: str) -> object | ArrayAt:
    """The value of ``key`` at the cursor, checked to lie inside the file."""
    kind = reader.u32(f"the type of '{key}'")
    if kind == _STRING:
        return reader.text(f"'{key}'")
    if kind != _ARRAY:
        return _decode_numbers(reader, key, _numbers(reader, key, kind, 1))[0]
    kind = reader.u32(f"the element type of '{key}'")
    if kind == _STRING:
        return _strings(reader, key, reader.count(f"the length of '{key}'", 8))
    if kind == _ARRAY:
        raise reader.fail(f"'{key}' is an array of arrays, which is not supported")
    return _numbers(reader, key, kind, reader.u64(f"the length of '{key}'"))


def _numbers(reader: Reader, key: str, kind: int, n: int) -> ArrayAt:
    if kind not in _NUMBERS:
        raise reader.fail(f"'{key}' has the unknown value type {kind}")
    start = reader.take(n * struct.calcsize(f"<{_NUMBERS[kind]}"), f"'{key}'")
    return ArrayAt(kind, n, start, reader.at)


def _decode_numbers(reader: Reader, key: str, where: ArrayAt) -> tuple[object, ...]:
    numbers = struct.unpack_from(f"<{where.n}{_NUMBERS[where.kind]}", reader.data, where.start)
    if where.kind != _BOOL:
        return numbers
    if max(numbers, default=0) > 1:
        raise reader.fail(f"'{key}' holds a byte other than 0 and 1 as a bool")
    return tuple(map(bool, numbers))


def _strings(reader: Reader, key: str, n: int) -> ArrayAt:
    """Follows the lengths alone: 20 ms for 300,000 strings."""
    data, start, size, unpack = reader.data, reader.at, reader.size, _U64.unpack_from
    at, i = start, 0
    try:
        for i in range(n):
            at += 8 + unpack(data, at)[0]
            if at > size:
                raise reader.fail(f"'{key}'[{i}] ends at byte {at}, the file at byte {size}")
    except struct.error:
        raise reader.fail(f"'{key}'[{i}] starts at byte {at}, the file ends at {size}") from None
    reader.at = at
    return ArrayAt(_STRING, n, start, at)


def _decode_strings(reader: Reader, key: str, where: ArrayAt) -> tuple[str, ...]:
    """One tight loop over a copy, which is sliced faster than a mapping."""
    data, at, unpack = reader.data[where.start : where.end], 0, _U64.unpack_from
    texts: list[str] = []
    try:
        for _ in range(where.n):
            start = at + 8
            at = start + unpack(data, at)[0]
            texts.append(str(data[start:at], "utf-8"))
    except struct.error:
        raise reader.fail(f"'{key}' has changed since the file was opened") from None
    except UnicodeDecodeError:
        raise reader.fail(f"'{key}'[{len(texts)}] is not valid UTF-8") from None
    return tuple(texts)
