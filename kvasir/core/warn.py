"""Warnings of a response: as many as fit, and how many did not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_WARNINGS = 16
MAX_NAME = 64
"""Characters of a client's own name for something; up to ten bytes each, as they are shown."""


def escaped(name: str) -> str:
    """A name that a client chose, bounded and without control characters."""
    text = repr(name[:MAX_NAME])[1:-1]
    return text if len(name) <= MAX_NAME else text + "…"


def bounded(names: Sequence[str], warning: Callable[[str], str]) -> tuple[str, ...]:
    """Of the first ``MAX_WARNINGS``; instead of the others one that counts them."""
    kept, n_more = map(warning, names[:MAX_WARNINGS]), len(names) - MAX_WARNINGS
    return (*kept, f"{n_more} more warnings were left out") if n_more > 0 else tuple(kept)
