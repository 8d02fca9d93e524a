"""Where a file is made before it gets its name, and what of it is there: a run that was killed is
gone on with by the next that asks for the same."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import msgspec

from kvasir.core.errors import ConfigError

_SETTINGS, _JOURNAL, _TEXT, _LOCK = "settings", "journal", "text", "lock"


class PartialOutput:
    """A folder beside ``output`` that one process has at a time."""

    def __init__(self, output: Path, settings: Mapping[str, object]) -> None:
        """``settings``: all that the bytes depend on; what was begun with others is removed. Raises
        ConfigError where another process is writing, and for a folder of somebody else."""
        self._folder = output.absolute().parent / f".{output.name}.part"
        self._folder.mkdir(exist_ok=True)
        known = {_SETTINGS, _JOURNAL, _TEXT, _LOCK, output.name}
        if self._folder.is_symlink() or {x.name for x in self._folder.iterdir()} - known:
            raise ConfigError(
                f"--output {output}: {self._folder} is in the way, and what it holds was not "
                "written here: give another name, or remove it"
            )
        self._lock = self._locked(output)
        path, data = self._folder / _SETTINGS, json.dumps(settings, sort_keys=True).encode()
        if not path.exists() or path.read_bytes() != data:
            self._clear()
            path.write_bytes(data)
        self.made = self._folder / output.name
        """What gets its name at last."""
        self.text = self._folder / _TEXT
        """Chunks that a model wrote."""
        self._journal: BinaryIO | None = None
        self._done: set[str] = set()

    def begin(self, digest: str, n_bytes: int) -> frozenset[str]:
        """Names that were told to be done, of those who chose by the text ``digest``. Whose files
        have less than ``n_bytes`` were touched by somebody else: it begins anew."""
        path, first = self._folder / _JOURNAL, json.dumps(digest)
        lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
        names = _names(lines[1:])
        is_whole = not names or sum(x.stat().st_size for x in self._files()) >= n_bytes
        if not lines or lines[0] != first.encode() or names is None or not is_whole:
            self._remove(self.made)
            path.write_bytes(first.encode() + b"\n")
            lines, names = [], []
        self._done = set(names)
        length = len(b"".join(line + b"\n" for line in lines)) or len(first) + 1
        self._journal = path.open("r+b")
        self._journal.truncate(length)  # a line that was cut is none
        self._journal.seek(0, os.SEEK_END)
        return frozenset(self._done)

    def has(self, name: str) -> bool:
        return name in self._done

    def add(self, name: str) -> None:
        """``name`` is on the disk."""
        assert self._journal is not None
        self._journal.write(json.dumps(name).encode() + b"\n")
        self._journal.flush()

    @property
    def n_done(self) -> int:
        """Tensors that are there, by the journal."""
        path = self._folder / _JOURNAL
        return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0

    @property
    def has_work(self) -> bool:
        """Whether there is what took long."""
        return self.n_done > 0 or self.text.exists()

    @property
    def n_bytes(self) -> int:
        """On the disk, of what was made before."""
        return sum(512 * path.stat().st_blocks for path in self._files())

    def _files(self) -> list[Path]:
        files = [self.made] if self.made.is_file() else self.made.rglob("*")
        return [path for path in files if path.is_file()]

    def close(self) -> None:
        """Keeps what is there."""
        if self._journal is not None:
            self._journal.close()
        os.close(self._lock)

    @property
    def folder(self) -> Path:
        return self._folder

    def remove(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def _locked(self, output: Path) -> int:
        path = self._folder / _LOCK
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel lets go of the dead's
            is_ours = path.exists() and os.fstat(lock).st_ino == path.stat().st_ino
        except BlockingIOError:
            is_ours = False
        if not is_ours:
            os.close(lock)
            raise ConfigError(f"--output {output}: another process is writing it")
        return lock

    def _clear(self) -> None:
        for path in self._folder.iterdir():
            if path.name != _LOCK:
                self._remove(path)

    def _remove(self, path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _names(lines: list[bytes]) -> list[str] | None:
    """None: somebody else wrote there, or a power cut."""
    try:
        return [msgspec.json.decode(line, type=str) for line in lines]
    except msgspec.DecodeError:
        return None
