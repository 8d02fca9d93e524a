"""Warnings of a response: as many as fit, and how many did not."""

from __future__ import annotations

from collections.abc import Callable, Sequence

MAX_WARNINGS = 16
MAX_BYTES = 4096
"""Of them together, in UTF-8."""
MAX_NAME = 64
"""Characters of a client's own name for something; up to ten bytes each, as they are shown."""


def escaped(name: str) -> str:
    """A name that a client chose, bounded and without control characters."""
    text = repr(name[:MAX_NAME])[1:-1]
    return text if len(name) <= MAX_NAME else text + "…"


def bounded(names: Sequence[str], warning: Callable[[str], str]) -> tuple[str, ...]:
    """Of the first names, as many as MAX_WARNINGS and MAX_BYTES allow; instead of the others one
    that counts them."""
    kept: list[str] = []
    left = MAX_BYTES
    for name in names[:MAX_WARNINGS]:
        text = warning(name)
        left -= len(text.encode(errors="replace"))
        if left < 0:
            break
        kept.append(text)
    n_more = len(names) - len(kept)
    return (*kept, f"{n_more} more warnings were left out") if n_more else tuple(kept)


def warned(warnings: Sequence[str]) -> dict[str, list[str]]:
    """The field of an answer, where there is anything to say."""
    return {"warnings": list(warnings)} if warnings else {}
