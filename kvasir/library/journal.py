"""What is on disk of a file that is being fetched, said after it is there.

A line says so once the bytes are synced, so that a process that is killed, or a machine that loses
its power, finds no more in the journal than in the file. What was fetched and not said is fetched
again.
"""

from __future__ import annotations

import contextlib
import os
import time
from itertools import pairwise
from pathlib import Path

import msgspec

N_PARTS = 4
"""Ranges that are fetched at a time."""
MIN_PART = 8 << 20
SYNC_BYTES = 2 << 20
"""Bytes of a part between two lines: of N_PARTS of them, 8 MiB at most are fetched twice, and what
was on its way (on one machine, some 4 MiB of each connection)."""
SYNC_SECONDS = 0.25
"""And seconds, so that a slow line loses less."""


class FilePart(msgspec.Struct):
    start: int
    end: int
    done: int = 0
    """Bytes that are written."""
    synced: int = 0
    said: float = 0.0
    """When that was, of a clock that never jumps."""

    @property
    def at(self) -> int:
        return self.start + self.done

    @property
    def is_done(self) -> bool:
        return self.at >= self.end


class JournalHead(msgspec.Struct, frozen=True):
    """The first line: what the parts are of."""

    n_bytes: int
    digest: str
    bounds: tuple[tuple[int, int], ...]


def divided(n_bytes: int, n_parts: int = N_PARTS) -> tuple[tuple[int, int], ...]:
    """Bounds of the parts of a file."""
    n = max(1, min(n_parts, n_bytes // MIN_PART))
    edges = [n_bytes * i // n for i in range(n + 1)]
    return tuple(pairwise(edges))


class PartJournal:
    """Of one file, whose bytes lie in ``path``."""

    def __init__(self, path: Path, journal: Path, n_bytes: int, digest: str) -> None:
        """Goes on where an earlier one of the same file stopped. Raises OSError."""
        self._journal = journal
        self._wanted = JournalHead(n_bytes, digest, divided(n_bytes))
        head, done = _read(journal)
        has_bytes = path.is_file() and path.stat().st_size == n_bytes
        if head is None or (head.n_bytes, head.digest) != (n_bytes, digest) or not has_bytes:
            head, done = self._wanted, {}
        self.head = head
        self.parts = [
            FilePart(start, end, *(2 * (min(done.get(i, 0), end - start),)))
            for i, (start, end) in enumerate(head.bounds)
        ]
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self.file = os.open(path, flags, 0o644)
        os.ftruncate(self.file, n_bytes)
        self._lines = os.open(journal, flags | os.O_TRUNC, 0o644)
        self._say(msgspec.json.encode(head))
        for i, part in enumerate(self.parts):
            self._say(b"%d %d" % (i, part.synced))

    @property
    def n_done(self) -> int:
        return sum(part.done for part in self.parts)

    def whole(self) -> FilePart:
        """One part instead, from the beginning: of a server that knows no ranges."""
        self.head = msgspec.structs.replace(self._wanted, bounds=((0, self._wanted.n_bytes),))
        self.parts = [FilePart(0, self._wanted.n_bytes)]
        os.ftruncate(self._lines, 0)
        os.lseek(self._lines, 0, os.SEEK_SET)
        self._say(msgspec.json.encode(self.head))
        return self.parts[0]

    def write(self, part: FilePart, data: bytes) -> None:
        """``data`` is the next of it. Raises OSError."""
        view = memoryview(data)[: part.end - part.at]
        while view:
            n = os.pwrite(self.file, view, part.at)
            part.done += n
            view = view[n:]
        is_long_ago = time.monotonic() - part.said >= SYNC_SECONDS
        if is_long_ago or part.done - part.synced >= SYNC_BYTES:
            self.sync(part)

    def sync(self, part: FilePart) -> None:
        """Its bytes are on disk, and then the journal says so. Raises OSError."""
        done = part.done
        if done > part.synced:
            os.fdatasync(self.file)
            self._say(b"%d %d" % (self.parts.index(part), done))
            part.synced, part.said = done, time.monotonic()

    def close(self) -> None:
        for part in self.parts:
            with contextlib.suppress(OSError):  # what is not said is fetched again
                self.sync(part)
        os.close(self.file)
        os.close(self._lines)

    def _say(self, line: bytes) -> None:
        """At once: lines of threads do not mix."""
        os.write(self._lines, line + b"\n")


def _read(journal: Path) -> tuple[JournalHead | None, dict[int, int]]:
    """A line that was not finished says nothing."""
    try:
        first, *lines = journal.read_bytes().split(b"\n")[:-1]
        head = msgspec.json.decode(first, type=JournalHead)
    except (OSError, ValueError):
        return None, {}
    done: dict[int, int] = {}
    for line in lines:
        words = line.split()
        if len(words) == 2 and all(word.isdigit() for word in words):
            done[int(words[0])] = int(words[1])
    edges = [edge for bounds in head.bounds for edge in bounds]
    is_sound = edges == sorted(edges) and edges[:1] == [0] and edges[-1:] == [head.n_bytes]
    return (head, done) if is_sound else (None, {})
