"""A directory of segments within a bound of bytes: the one used least recently goes first."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from kvasir.config.sizes import format_size
from kvasir.core.errors import ConfigError
from kvasir.exec.disk.segment import (
    ENTRY_BYTES,
    MAX_ENTRIES,
    DamagedSegment,
    Segment,
    table_bytes,
)

_log = logging.getLogger(__name__)

SUFFIX = ".kvseg"
N_SEGMENTS = 64
"""Files that share the bound: what goes at a time is at most this part of it."""
MAX_SEGMENTS = 4 * N_SEGMENTS
"""Files that are kept open, when the bound was raised again and again."""
LOCK = "lock"
HOLDER_BYTES = 100
"""Of the line that says who has the lock: host names have at most 64."""


class Limits(msgspec.Struct, frozen=True):
    """``n_bytes``: of all files together. ``sizes``: bytes of a block of each KV group."""

    n_bytes: int
    sizes: tuple[int, ...]

    @property
    def block_bytes(self) -> int:
        """Of the largest block."""
        return max(self.sizes)

    @property
    def segment_bytes(self) -> int:
        """Of one file."""
        return self.n_bytes // N_SEGMENTS

    @property
    def n_entries(self) -> int:
        return min(MAX_ENTRIES, max(1, self.segment_bytes // (self.block_bytes + ENTRY_BYTES)))

    def check(self) -> None:
        """Raises ConfigError when a file cannot hold one block."""
        needs = (table_bytes(1) + self.block_bytes) * N_SEGMENTS
        if self.n_bytes < needs:
            raise ConfigError(
                f"kv_disk_size {format_size(self.n_bytes)} is too small for blocks of "
                f"{format_size(self.block_bytes)}: use at least {format_size(needs + needs // 8)}"
            )


class SegmentDirectory:
    """Which block lies in which file. One thread, one process: the directory is locked."""

    def __init__(self, path: Path, limits: Limits) -> None:
        """Raises ConfigError when the directory cannot be used."""
        limits.check()
        self._path = path
        self._limits = limits
        self._lock = _open_directory(path)
        self._segments: dict[int, Segment] = {}
        """By number, the one used least recently first."""
        self._where: dict[bytes, int] = {}
        self._n_last = 0
        self._newest: int | None = None
        """The file that is continued."""
        self.n_damaged = 0
        """Blocks that were not read as they were written."""
        for number in _numbers_by_use(path):
            self._open(number)
        self._newest = max(self._segments, default=None)

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __len__(self) -> int:
        return len(self._where)

    @property
    def n_bytes(self) -> int:
        return sum(segment.n_bytes for segment in self._segments.values())

    def size(self, name: bytes) -> int:
        """Bytes of a saved block; 0 when it is not there. For any thread."""
        segment = self._segments.get(self._where.get(name, 0))
        place = segment.places.get(name) if segment is not None else None
        return 0 if place is None else place.length

    def append(self, name: bytes, payload: bytes) -> None:
        """Save a block. Raises OSError."""
        if len(payload) > self._limits.block_bytes:
            raise ValueError(f"{len(payload)} bytes, the limit is {self._limits.block_bytes}")
        number = self._with_room(len(payload))
        self._segments[number].append(name, payload)
        self._where[name] = number

    def read(self, name: bytes) -> bytes | None:
        """A saved block; None when it is not there, or damaged. Raises OSError."""
        number = self._where.get(name)
        if number is None:
            return None
        payload = self._segments[number].read(name)
        if payload is None:
            self.forget(name)
            self._count_damage(self._segments[number].path)
        return payload

    def forget(self, name: bytes) -> None:
        """The block cannot be read."""
        self._where.pop(name, None)

    def touch(self, name: bytes) -> None:
        """The block was of use: its file goes last. Raises OSError."""
        number = self._where.get(name)
        if number is not None and number != next(reversed(self._segments)):
            self._segments[number] = self._segments.pop(number)
            self._segments[number].touch()

    def clear(self) -> None:
        """Remove all blocks."""
        for number in list(self._segments):
            self._remove(number)

    def close(self) -> None:
        for segment in self._segments.values():
            segment.close()
        self._segments.clear()
        self._where.clear()
        os.close(self._lock)

    def _count_damage(self, path: Path) -> None:
        self.n_damaged += 1
        if self.n_damaged == 1:
            _log.warning(
                "a KV block in %s is damaged and will be computed again; more of them are counted "
                "and not logged: check the disk",
                path,
            )

    def _with_room(self, n_bytes: int) -> int:
        newest = self._newest
        limit = self._limits.segment_bytes
        if newest is not None and self._segments[newest].has_room(n_bytes, limit):
            return newest
        self._newest = None
        self._make_room(limit)
        self._n_last += 1
        path = self._path / f"{self._n_last:016d}{SUFFIX}"
        self._segments[self._n_last] = Segment.create(path, self._limits.n_entries)
        self._newest = self._n_last
        return self._n_last

    def _make_room(self, n_bytes: int) -> None:
        used = self.n_bytes
        while self._segments and (
            used + n_bytes > self._limits.n_bytes or len(self._segments) >= MAX_SEGMENTS
        ):
            number = next(iter(self._segments))
            used -= self._segments[number].n_bytes
            self._remove(number)

    def _remove(self, number: int) -> None:
        segment = self._segments.pop(number)
        for name in segment.places:
            if self._where.get(name) == number:
                del self._where[name]
        segment.close()
        segment.path.unlink(missing_ok=True)
        if self._newest == number:
            self._newest = None

    def _open(self, number: int) -> None:
        self._n_last = max(self._n_last, number)
        path = self._path / f"{number:016d}{SUFFIX}"
        try:
            segment = Segment.open(path)
        except OSError as error:
            _log.warning("saved KV blocks in %s cannot be read: %s", path, error)
            return
        except DamagedSegment as error:
            _log.warning("saved KV blocks are lost: %s", error)
            path.unlink(missing_ok=True)
            return
        self._segments[number] = segment
        self._where.update(dict.fromkeys(segment.places, number))
        self._make_room(0)


def _open_directory(path: Path) -> int:
    """The descriptor that holds the lock; it ends with the process, however that ends."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(path / LOCK, flags, 0o600)
    except OSError as error:
        raise ConfigError(f"kv_disk {path}: {_remedy(error)}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _holder(lock)
        os.close(lock)
        raise ConfigError(
            f"kv_disk {path} is used by another engine{holder}: wait until that has ended, or give "
            "each engine a directory of its own"
        ) from error
    _sign(lock)
    return lock


def _sign(lock: int) -> None:
    """Write who has it. Only for people: a full disk, where that fails, is no reason not to read
    what lies there."""
    with suppress(OSError):
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} on {os.uname().nodename}".encode(), 0)


def _holder(lock: int) -> str:
    """Who has it, where that is known."""
    said = os.pread(lock, HOLDER_BYTES, 0).decode("utf-8", "replace")
    return f" ({said})" if said.isprintable() and said else ""


def _remedy(error: OSError) -> str:
    what = os.strerror(error.errno) if error.errno else str(error)
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return "not a directory: name one, or a path where one can be made"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"{what}: name a directory that this user may write"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{what}: free some space, or name a directory on another disk"
    return what


def _numbers_by_use(path: Path) -> list[int]:
    """Of the files with saved blocks, the one used least recently first."""
    found: list[tuple[int, int]] = []
    with os.scandir(path) as entries:
        for entry in entries:
            stem, _ = os.path.splitext(entry.name)
            is_number = stem.isascii() and stem.isdigit()
            if not is_number or entry.name != f"{int(stem):016d}{SUFFIX}":
                continue
            if entry.is_file(follow_symlinks=False):
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, int(stem)))
    return [number for _, number in sorted(found)]
