"""What model files hold, by hash: all of their bytes are read once, and the hash is remembered."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from tempfile import mkstemp

import msgspec

from kvasir.formats.mapped import Stamp, TensorFile

_log = logging.getLogger("kvasir.weights")

CHUNK = 4 << 20
"""Bytes that one thread hashes at a time."""
MAX_FILES = 1024
"""Model files whose hashes are remembered."""
SETTLED = 2_000_000_000
"""Nanoseconds after which another change of a file gets another time: FAT counts by two seconds."""
COARSE = 10_000_000
"""A time of whole hundredths of a second is of a file system that knows no finer ones, and keeps
no change time of its own either (FAT, exFAT)."""
_WORD = b"kvasir-hash-1"
_SUFFIX = ".hash"
_MAX_BYTES = 512


def hash_bytes(file: TensorFile) -> str:
    """64 hex digits for all bytes that are mapped: SHA-256 of the SHA-256 of each chunk.

    On all CPUs, 1.5 GB/s each where the CPU has instructions for it (BLAKE2b: 0.6 GB/s).
    """
    data = memoryview(file.mapping)
    n_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    with ThreadPoolExecutor(n_threads, thread_name_prefix="kvasir-hash") as pool:
        digests = pool.map(
            lambda at: sha256(data[at : at + CHUNK]).digest(), range(0, len(data), CHUNK)
        )
        digest = sha256(b"".join(digests)).hexdigest()
    file.release()
    return digest


class HashMemory(msgspec.Struct, frozen=True):
    """A folder with one small file for each model file that was hashed.

    A damaged or foreign one counts as none. Who can write to the folder can change answers.
    """

    folder: Path
    settled: int = SETTLED

    def hash_of(self, file: TensorFile) -> str:
        """As ``hash_bytes``; no byte is read when the file has not changed since it was hashed."""
        known = self._recall(file.stamp)
        if known is not None:
            return known
        began = time.perf_counter()
        digest = hash_bytes(file)
        _log.info("hashed %s in %.0f ms", file.path, 1e3 * (time.perf_counter() - began))
        if self._is_settled(file.stamp):
            self._remember(file.stamp, digest)
        return digest

    def _is_settled(self, stamp: Stamp) -> bool:
        """Whether any change since the file was mapped has given it another stamp."""
        return stamp.changed + self.settled < stamp.seen and stamp.changed % COARSE != 0

    def _recall(self, stamp: Stamp) -> str | None:
        try:
            with self._path(stamp).open("rb") as stream:
                found = stream.read(_MAX_BYTES)
        except OSError:  # there is none, or it is of no use
            return None
        digest = found.split(b" ")[-2] if found.count(b" ") >= 2 else b""
        return digest.decode() if found == _entry(stamp, digest) else None

    def _remember(self, stamp: Stamp, digest: str) -> None:
        """Whole or not at all. A failure is a line in the log."""
        path = self._path(stamp)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file, unfinished = mkstemp(".unfinished", path.name, self.folder)
            with os.fdopen(file, "wb") as stream:
                stream.write(_entry(stamp, digest.encode()))
            os.replace(unfinished, path)
            self._make_room()
        except OSError as error:
            _log.warning(
                "the hash of the model is not remembered in %s: %s. Every start reads the whole "
                "model; KVASIR_CACHE names another folder",
                self.folder,
                error.strerror or error,
            )

    def _make_room(self) -> None:
        """The oldest go first; those that were never finished grow old too."""
        found = []
        for path in self.folder.glob(f"*{_SUFFIX}*"):
            with contextlib.suppress(FileNotFoundError):  # removed by another process
                found.append((path.stat().st_mtime_ns, path))
        for _, path in sorted(found)[: max(0, len(found) - MAX_FILES)]:
            path.unlink(missing_ok=True)

    def _path(self, stamp: Stamp) -> Path:
        return self.folder / f"{stamp.device:x}-{stamp.inode:x}{_SUFFIX}"


def _entry(stamp: Stamp, digest: bytes) -> bytes:
    """What is remembered of a file, with its own checksum."""
    numbers = (stamp.device, stamp.inode, stamp.n_bytes, stamp.modified, stamp.changed)
    body = b" ".join((_WORD, *(b"%d" % number for number in numbers), digest))
    return body + b" " + sha256(body).hexdigest().encode()
