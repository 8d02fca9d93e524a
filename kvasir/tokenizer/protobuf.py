"""The wire format of protocol buffers, as far as it takes to read a SentencePiece model.

https://protobuf.dev/programming-guides/encoding: a message is fields, each a number, a kind and a
value. Nothing is allocated by a length that a file claims.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvasir.core.errors import ModelError

Value = int | bytes
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED = {_FIXED64: 8, _FIXED32: 4}
_MAX_VARINT = 10
"""Bytes."""


def read_fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Number and value of each field of a message: an integer below 2^64, or bytes. Raises
    ModelError."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ModelError(f"field {number} before byte {at} has the unknown kind {kind}")
        if size > len(data) - at:
            raise ModelError(
                f"field {number} at byte {at} has {size} bytes, {len(data) - at} follow"
            )
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in groups of seven bits, the lowest first, and where it ends."""
    value = 0
    for n, byte in enumerate(data[at : at + _MAX_VARINT]):
        value |= (byte & 0x7F) << 7 * n
        if byte < 0x80:
            return value & (1 << 64) - 1, at + n + 1
    raise ModelError(f"a number at byte {at} does not end")
