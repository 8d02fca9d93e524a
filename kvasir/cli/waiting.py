"""A word about what takes longer than a second."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

SECONDS = 1.0
CLEAR = "\r\x1b[K"
"""The line is empty again."""


@contextlib.contextmanager
def waiting(what: str) -> Iterator[None]:
    """``what`` is shown on a terminal while the block takes longer than a second, and is gone
    behind it."""
    if not sys.stderr.isatty():
        yield
        return
    shown = threading.Event()
    stream = sys.stderr

    def tell() -> None:
        shown.set()
        stream.write(f"{what} …")
        stream.flush()

    timer = threading.Timer(SECONDS, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        if shown.is_set():
            stream.write(CLEAR)
            stream.flush()
