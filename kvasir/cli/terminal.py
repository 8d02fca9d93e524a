"""Text of others: a terminal shows its control characters as signs, a file or a pipe gets every
character as it is."""

from __future__ import annotations

from typing import IO

from kvasir.config.controls import harmless


def for_stream(text: str, stream: IO[str]) -> str:
    """``text`` as it may be written to ``stream``."""
    return harmless(text) if stream.isatty() else text


def show(text: str, stream: IO[str]) -> None:
    """Write ``text`` at once."""
    stream.write(for_stream(text, stream))
    stream.flush()
