"""What a command does before anything else: descriptors, words, signals."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def prepare() -> None:
    """To be called before anything opens a file or takes long to import."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as under nohup
            signal.signal(number, _end)
    _open_standard()
    # A file name that is not UTF-8 is shown with escapes instead of failing.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def interruptible() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt; until then, and SIGTERM for ever, it ends the
    process with a line: it could come amid an import, which has nothing to clean up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def finish() -> None:
    """What cannot be written is tried no more: Python would, and end with a status of its own."""
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)


def _end(number: int, _: FrameType | None) -> None:
    try:
        os.write(2, f"kvasir: ended by {signal.Signals(number).name}\n".encode())
    finally:
        os._exit(128 + number)


def _open_standard() -> None:
    """A descriptor from 0 to 2 that is closed would be given to the next file or socket, and what
    is meant for a terminal would be written there."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115
