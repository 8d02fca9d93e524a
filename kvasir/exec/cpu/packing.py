"""The file that packed weights are kept in.

A header (magic, version, key, bytes of data, digest of header and sums), the XXH64 of each MiB of
the data, the data. Nothing in it decides a size or a place: a file is used only when it has the
size and the key that the program at hand asks for, and its bytes have their sums.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir import _native

SUFFIX = ".packed"
CHUNK = 1 << 20
"""Bytes under one checksum."""
ALIGNMENT = 64
"""Of each weight."""
_PAGE = 4096
_MAGIC = b"KVASIRPW"
_VERSION = 1
_FIELDS = struct.Struct("<8sI32sQ")
_DIGEST = 32
_HEAD = _FIELDS.size + _DIGEST

Bytes = NDArray[np.uint8]


class Packing(msgspec.Struct, frozen=True):
    """One way to pack one model: a key for all that decides the bytes, and the sizes of the weights
    in order."""

    key: bytes
    """32 bytes."""
    sizes: tuple[int, ...]

    @property
    def file_name(self) -> str:
        return self.key.hex()[:32] + SUFFIX

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Where each weight begins and ends in the data."""
        begins = accumulate((_aligned(size) for size in self.sizes), initial=0)
        return tuple((begin, begin + size) for begin, size in zip(begins, self.sizes, strict=False))

    @property
    def n_bytes(self) -> int:
        """Of the data."""
        return sum(_aligned(size) for size in self.sizes)

    @property
    def data_start(self) -> int:
        return _aligned(_HEAD + 8 * self._n_chunks, _PAGE)

    @property
    def file_bytes(self) -> int:
        return self.data_start + self.n_bytes

    @property
    def _n_chunks(self) -> int:
        return -(-self.n_bytes // CHUNK)

    def head(self, pool: _native.Pool, data: Bytes) -> bytes:
        """What a file with this ``data`` begins with: ``data_start`` bytes."""
        sums = np.zeros(self._n_chunks, np.uint64)
        _native.checksums(pool, data, CHUNK, sums)
        return self._head(sums.astype("<u8").tobytes())

    def _head(self, sums: bytes) -> bytes:
        fields = _FIELDS.pack(_MAGIC, _VERSION, self.key, self.n_bytes)
        digest = hashlib.blake2b(fields + sums, digest_size=_DIGEST).digest()
        return (fields + digest + sums).ljust(self.data_start, b"\0")

    def damage(self, file: Bytes, pool: _native.Pool) -> str:
        """What is wrong with a whole file; empty when it is sound. Reads every byte."""
        if file.size != self.file_bytes:
            return f"has {file.size} bytes, {self.file_bytes} were expected"
        head, data = file[: self.data_start].tobytes(), file[self.data_start :]
        sums = head[_HEAD : _HEAD + 8 * self._n_chunks]
        if head != self._head(sums):
            return "has a header of other weights, or a damaged one"
        if head != self.head(pool, data):
            return "is damaged: its bytes do not have their checksums"
        return ""


def packing_of(content_hash: str, description: object, sizes: Sequence[int]) -> Packing:
    """``description``: what decides the bytes beside the model's content; its repr counts."""
    text = f"{_native.LAYOUT_VERSION}|{content_hash}|{description!r}|{tuple(sizes)}"
    return Packing(hashlib.blake2b(text.encode(), digest_size=32).digest(), tuple(sizes))


def _aligned(size: int, step: int = ALIGNMENT) -> int:
    return -(-size // step) * step
