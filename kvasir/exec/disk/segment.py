"""One file of saved KV blocks: a header, a table of fixed entries, then payloads. Little endian.

A payload is appended before its entry is written, and every entry carries a checksum of its name
and payload: what a crash or a bad disk leaves behind is a miss.
"""

from __future__ import annotations

import os
from pathlib import Path
from struct import Struct

import msgspec

from kvasir import _native
from kvasir.core.errors import KvasirError

MAGIC = b"kvasirKV"
VERSION = 3
"""2 could hold blocks under the names of others."""
MAX_ENTRIES = 1 << 20
_HEADER = Struct("<8sII48x")
"""Magic, version, entries in the table."""
_ENTRY = Struct("<36sIQQ8x")
"""Name, payload bytes, payload offset, checksum."""
ENTRY_BYTES = _ENTRY.size
_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW


class DamagedSegment(KvasirError):
    """Not a file of saved blocks, or not whole."""


class Extent(msgspec.Struct, frozen=True):
    """Where the payload of a block lies in a segment's file."""

    offset: int
    length: int
    checksum: int


def table_bytes(n_entries: int) -> int:
    """Bytes of a segment before its payloads."""
    return ENTRY_BYTES * (1 + n_entries)


class Segment:
    """Open until ``close``. Entries are only added; a file goes as a whole. Raises OSError."""

    def __init__(self, path: Path, fd: int, n_entries: int) -> None:
        self.path = path
        self.places: dict[bytes, Extent] = {}
        self.n_bytes = os.fstat(fd).st_size
        self._fd = fd
        self._n_entries = n_entries
        self._n_used = 0

    @staticmethod
    def create(path: Path, n_entries: int) -> Segment:
        """A new file, for its owner alone."""
        fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            _write(fd, _HEADER.pack(MAGIC, VERSION, n_entries), 0)
            os.ftruncate(fd, table_bytes(n_entries))
            return Segment(path, fd, n_entries)
        except OSError:
            os.close(fd)
            raise

    @staticmethod
    def open(path: Path) -> Segment:
        """A file as it was left; entries that point outside it are passed over.

        Raises DamagedSegment when it cannot be one.
        """
        fd = os.open(path, _FLAGS)
        try:
            segment = Segment(path, fd, _read_header(fd, path))
            segment._read_table()
            return segment
        except (OSError, DamagedSegment):
            os.close(fd)
            raise

    def has_room(self, n_bytes: int, limit: int) -> bool:
        """For one more payload, in a file of at most ``limit`` bytes."""
        return self._n_used < self._n_entries and self.n_bytes + n_bytes <= limit

    def append(self, name: bytes, payload: bytes) -> None:
        place = Extent(self.n_bytes, len(payload), _checksum(name, payload))
        _write(self._fd, payload, place.offset)
        entry = _ENTRY.pack(name, place.length, place.offset, place.checksum)
        _write(self._fd, entry, table_bytes(self._n_used))
        self._n_used += 1
        self.n_bytes += place.length
        self.places[name] = place

    def read(self, name: bytes) -> bytes | None:
        """The payload; None when it is not what was written."""
        place = self.places[name]
        payload = os.pread(self._fd, place.length, place.offset)
        return payload if _checksum(name, payload) == place.checksum else None

    def touch(self) -> None:
        """Remember, beyond a restart, that the file was of use."""
        os.utime(self._fd)

    def close(self) -> None:
        os.close(self._fd)

    def _read_table(self) -> None:
        table = os.pread(self._fd, table_bytes(self._n_entries), 0)[ENTRY_BYTES:]
        first = table_bytes(self._n_entries)
        for i, (name, length, offset, checksum) in enumerate(_ENTRY.iter_unpack(table)):
            if checksum or any(name):
                self._n_used = i + 1
            if length and first <= offset <= self.n_bytes - length:
                self.places[name] = Extent(offset, length, checksum)


def _read_header(fd: int, path: Path) -> int:
    """Entries in the table."""
    data = os.pread(fd, ENTRY_BYTES, 0)
    size = os.fstat(fd).st_size
    if len(data) < ENTRY_BYTES:
        raise DamagedSegment(f"{path} has {size} bytes: too short for saved KV blocks")
    magic, version, n_entries = _HEADER.unpack(data)
    if magic != MAGIC or version != VERSION:
        raise DamagedSegment(f"{path} does not hold KV blocks of version {VERSION}")
    if not 0 < n_entries <= MAX_ENTRIES or table_bytes(n_entries) > size:
        raise DamagedSegment(f"{path} of {size} bytes names a table of {n_entries} blocks")
    return int(n_entries)


def _checksum(name: bytes, payload: bytes) -> int:
    """XXH64, an order of magnitude faster than a cryptographic hash: a reply waits for it."""
    return _native.checksum(payload, _native.checksum(name))


def _write(fd: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        n = os.pwrite(fd, left, offset)
        left, offset = left[n:], offset + n
