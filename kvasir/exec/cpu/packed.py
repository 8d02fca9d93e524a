"""Packed weights kept on disk from start to start: a bounded folder of files."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import mmap
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkstemp

import msgspec
import numpy as np

from kvasir import _native
from kvasir.config.hardware import probe
from kvasir.config.sizes import format_size
from kvasir.exec.cpu.packing import SUFFIX, Bytes, Packing
from kvasir.exec.cpu.pages import LEAST_BYTES, read_whole

_log = logging.getLogger("kvasir.packed")

MIN_BYTES = 16 << 20
"""Fewer are packed again sooner than they are worth a file."""
RESERVE_BYTES = 1 << 30
"""Disk space that packed files leave free."""
UNFINISHED = ".unfinished"


class PackedCache(msgspec.Struct, frozen=True):
    """Of the files in ``folder``, the one that was used longest ago goes first."""

    folder: Path
    limit: int
    """Bytes of all files together."""
    min_bytes: int = MIN_BYTES
    """Of a model: smaller ones are packed at every start."""

    def load(
        self, packing: Packing, pool: _native.Pool, *, huge: bool = False
    ) -> list[Bytes] | None:
        """The packed weights: mapped read-only, one copy for all processes; or, where ``huge``, a
        copy in huge pages, which files have on few systems. None without a file.

        Every byte is checked. A damaged, short or foreign file counts as none, with a line in the
        log.
        """
        path = self.folder / packing.file_name
        began = time.perf_counter()
        try:
            file = read_whole(path) if huge and _fits(path, packing) else _map(path)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:  # ValueError: an empty file
            _log.warning("packed weights %s cannot be read (%s): packing again", path, error)
            return None
        damage = packing.damage(file, pool)
        if damage:
            _log.warning("packed weights: %s %s: packing again", path, damage)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now
        size, milliseconds = format_size(file.size), 1e3 * (time.perf_counter() - began)
        _log.info("packed weights: %s, %s checked in %.0f ms", path, size, milliseconds)
        data = file[packing.data_start :]
        return [data[begin:end] for begin, end in packing.spans]

    def store(self, packing: Packing, weights: Sequence[Bytes]) -> None:
        """Keeps the weights in a file: whole or not at all. A failure is a line in the log."""
        try:
            self._make_room(packing.file_bytes)
            self._write(packing, weights)
        except OSError as error:
            reason = error.strerror or error
            _log.warning(
                "packed weights are not kept in %s: %s. Every start packs them again; "
                "--packed-cache names another folder, or off",
                self.folder,
                reason,
            )

    def _make_room(self, n_bytes: int) -> None:
        """Raises OSError when they cannot fit."""
        if n_bytes > self.limit:
            raise OSError(f"{format_size(n_bytes)} exceed --packed-cache-size")
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_stale(self.folder)
        files = sorted(_files(self.folder, SUFFIX), key=lambda found: found[1].st_mtime_ns)
        total = n_bytes + sum(stat.st_size for _, stat in files)
        for path, stat in files:
            if total <= self.limit:
                break
            path.unlink(missing_ok=True)
            total -= stat.st_size
            _log.info("packed weights: removed %s, unused for longest", path)
        disk = os.statvfs(self.folder)
        free = disk.f_bavail * disk.f_frsize
        if free < n_bytes + RESERVE_BYTES:
            raise OSError(
                f"{format_size(n_bytes)} beside a reserve of {format_size(RESERVE_BYTES)} do not "
                f"fit into the {format_size(free)} that the disk has free"
            )

    def _write(self, packing: Packing, weights: Sequence[Bytes]) -> None:
        path = self.folder / packing.file_name
        file, name = mkstemp(UNFINISHED, f"{path.stem}.", self.folder)
        unfinished = Path(name)
        try:
            with os.fdopen(file, "w+b") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH)  # the kernel lets go when the writer dies
                os.posix_fallocate(stream.fileno(), 0, packing.file_bytes)
                for (begin, _), weight in zip(packing.spans, weights, strict=True):
                    stream.seek(packing.data_start + begin)
                    stream.write(weight.data)
                stream.flush()
                data = _map(unfinished)[packing.data_start :]
                head = packing.head(_native.Pool(1), data)
                stream.seek(0)
                stream.write(head)
                stream.flush()
                os.fsync(stream.fileno())
            unfinished.rename(path)
        finally:
            unfinished.unlink(missing_ok=True)
        _log.info("packed weights: %s kept in %s", format_size(packing.file_bytes), path)


class Keeping(msgspec.Struct, frozen=True):
    """A file to be written."""

    cache: PackedCache
    packing: Packing
    weights: Sequence[Bytes]

    def start(self) -> threading.Thread:
        """Writes it on a thread of low priority, so that nothing waits for it."""
        thread = threading.Thread(target=self._run, name="kvasir-packed")
        thread.start()
        return thread

    def _run(self) -> None:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        self.cache.store(self.packing, self.weights)


def _fits(path: Path, packing: Packing) -> bool:
    """Whether it is no other file, large enough to be worth a copy, and that has room."""
    size = packing.file_bytes
    return size >= LEAST_BYTES and path.stat().st_size == size < probe().free_memory


def _map(path: Path) -> Bytes:
    """The whole file, read-only. Raises OSError, and ValueError when it is empty."""
    with path.open("rb") as stream:
        return np.frombuffer(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _files(folder: Path, suffix: str) -> list[tuple[Path, os.stat_result]]:
    found = []
    for path in folder.glob(f"*{suffix}"):
        with contextlib.suppress(FileNotFoundError):  # removed by another process
            found.append((path, path.stat()))
    return found


def _remove_stale(folder: Path) -> None:
    """Unfinished files whose writers have died."""
    for path, _ in _files(folder, UNFINISHED):
        with contextlib.suppress(BlockingIOError, FileNotFoundError), path.open("rb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
