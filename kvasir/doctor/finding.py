"""A problem, and where checks look for it."""

from __future__ import annotations

import errno
import os
import resource
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

Level = Literal["blocks", "costs"]
"""blocks: something that was asked for cannot work until it is mended."""


class Finding(msgspec.Struct, frozen=True):
    level: Level
    what: str
    how: str
    """It is known: the file that was read, the call that was made."""
    cost: str
    """What it does to who leaves it so."""
    cure: str
    """What to type or change."""


class DiskSize(NamedTuple):
    """Bytes of a file system."""

    total: int
    free: int


def disk_of(path: Path) -> DiskSize:
    """Of the file system that ``path`` is or would be on. Raises OSError."""
    here = next(each for each in (path, *path.parents) if each.exists())
    found = os.statvfs(here)
    return DiskSize(found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize)


def port_is_free(host: str, port: int) -> bool:
    """Raises OSError for an address that is none of this machine's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise
    return True


def may_write(folder: Path) -> bool:
    return os.access(folder, os.W_OK | os.X_OK)


def n_files() -> int:
    """That a process may open at most; -1: any number."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def native_levels() -> Sequence[str]:
    """Of this CPU, whose kernels are built. Raises ImportError."""
    # Imported now: it may be what is broken, and the checks are to say so.
    from kvasir import _native

    return _native.levels()


class Scene(msgspec.Struct, frozen=True):
    """Where checks look, so that tests can let them look elsewhere."""

    model: str | None = None
    root: Path = Path("/")
    """Above /proc, /sys and /dev."""
    variables: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)
    cache: Path = Path()
    disk: Callable[[Path], DiskSize] = disk_of
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    n_files: Callable[[], int] = n_files
    levels: Callable[[], Sequence[str]] = native_levels
    may_write: Callable[[Path], bool] = may_write
    port_is_free: Callable[[str, int], bool] = port_is_free
    reads_all: bool = False
    """Whether large files are hashed."""
    asks: bool = False
    """Whether the network is asked."""

    def text(self, path: str) -> str:
        """Of a file below ``root``; empty where there is none."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return ""


Checking = Callable[[Scene], Iterator[Finding]]
