"""The folder of the state: the database, contents of files, and who may use it."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from kvasir.core.errors import ConfigError
from kvasir.serve.state.database import StateError, StorageFull
from kvasir.serve.state.entries import Gone

PREFIX = "kvasir-state-"
"""Of temporary folders."""
LOCK = "lock"
ANSWERING = "answering"
"""Has a byte for each Idempotency-Key: who answers it has locked it."""
PART = ".part"
"""The end of names of contents that are being written."""


class Folder:
    """Contents are named by ids of ours; what clients call them is no part of a path.

    One process has it at a time: the lock ends with it, however it ends.
    """

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self.path = path
        self._files = path / "files"
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._files.mkdir(mode=0o700, exist_ok=True)
            self._lock, self._answering = (_opened(path / name) for name in (LOCK, ANSWERING))
        except OSError as error:
            raise ConfigError(
                f"the state cannot be kept in {path} ({error.strerror}): choose another --state-dir"
            ) from None

    def take(self) -> bool:
        """Whether it is this process's, from now on."""
        return _is_locked(self._lock)

    def claim(self, place: int) -> bool:
        """Whether no other process has ``place``, a number below 2^62: it is this one's from now
        on, until it gives it back or ends, however it ends. Raises StateError."""
        with _told():
            try:
                fcntl.lockf(self._answering, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
            except (BlockingIOError, PermissionError):
                return False
        return True

    def give_back(self, place: int) -> None:
        """What was claimed, or not."""
        fcntl.lockf(self._answering, fcntl.LOCK_UN, 1, place)

    @property
    def database(self) -> Path:
        return self.path / "state.db"

    def content(self, name: str) -> Path:
        """Where the content of the entry ``name`` lies."""
        return self._files / name

    def begin(self, name: str) -> Content:
        """A new content. Raises StateError."""
        return Content(self.content(name))

    def share(self, name: str, other: str) -> None:
        """``other`` has the same content, also when ``name`` is removed. Raises Gone (404),
        StateError."""
        with _told():
            self.content(other).unlink(missing_ok=True)
            try:
                os.link(self.content(name), self.content(other))
            except FileNotFoundError:  # deleted since somebody asked for it
                raise Gone("file", name) from None

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.content(name).unlink(missing_ok=True)

    def check_unused(self) -> None:
        """Before a database is made: contents that it does not know would be removed. Raises
        ConfigError."""
        if any(self._files.iterdir()):
            raise ConfigError(
                f"there are files in {self._files}, and no state.db beside it that knows them: "
                "restore it, or choose another --state-dir"
            )

    def keep_only(self, names: Collection[str]) -> int:
        """Removes what no entry knows, such as what a server left that was killed; how many."""
        known = set(names)
        lost = [path for path in self._files.iterdir() if path.name not in known]
        for path in lost:
            path.unlink()
        return len(lost)

    def close(self) -> None:
        os.close(self._lock)
        os.close(self._answering)


class TemporaryFolder(Folder):
    """Ends with the process; what others left that were killed ends when the next one begins."""

    def __init__(self) -> None:
        _remove_left()
        super().__init__(Path(tempfile.mkdtemp(prefix=PREFIX)))
        self.take()

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        super().close()


class Content:
    """A content that is written. It is there when it is kept, and as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(path.name + PART)
        with _told():
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            self._file = FileIO(os.open(self._part, flags, 0o600), "w")

    def write(self, data: bytes) -> None:
        """Raises StorageFull, StateError."""
        with _told():
            left = memoryview(data)
            while left:
                left = left[self._file.write(left) :]

    def keep(self) -> None:
        """Raises StorageFull, StateError."""
        with _told():
            os.fsync(self._file.fileno())
            self._file.close()
            self._part.rename(self._path)

    def drop(self) -> None:
        """What was kept is dropped as well."""
        self._file.close()
        self._part.unlink(missing_ok=True)
        self._path.unlink(missing_ok=True)


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the disk as ours."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull("the disk of the state is full: make room, or delete files") from None
        raise StateError(f"the state cannot be used: {error.strerror}") from error


def _opened(path: Path) -> int:
    return os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _is_locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _remove_left() -> None:
    """Temporary folders of ours that no process has."""
    for path in Path(tempfile.gettempdir()).glob(PREFIX + "*"):
        with suppress(OSError):  # another's, or another process is faster
            if path.stat().st_uid == os.getuid():
                lock = os.open(path / LOCK, os.O_RDWR | os.O_CLOEXEC)
                if _is_locked(lock):
                    shutil.rmtree(path, ignore_errors=True)
                os.close(lock)
