"""Lines that were typed, for the arrow keys: kept for their owner alone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_LINES = 1000


def history_file(variables: Mapping[str, str] = os.environ) -> Path:
    base = variables.get("XDG_STATE_HOME")
    folder = Path(base) if base else Path.home() / ".local" / "state"
    return folder / "kvasir" / "chat_history"


@contextlib.contextmanager
def remembered(path: Path | None = None) -> Iterator[None]:
    """Lines that are read in the block are edited as in a shell, and found again in the next. Only
    on a terminal."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:  # a Python without it
        yield
        return
    place = path or history_file()
    with contextlib.suppress(OSError):
        make_private(place)
        readline.read_history_file(place)
    readline.set_history_length(MAX_LINES)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a full disk ends no conversation
            readline.write_history_file(place)
            place.chmod(0o600)


def make_private(place: Path) -> None:
    """It is there, for its owner alone. Raises OSError."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(place, os.O_CREAT | os.O_RDWR, 0o600))
    place.chmod(0o600)
