"""Checks that several fields share; each failure is a ``RequestError`` (400) that names the
field."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvasir.core.errors import RequestError


def check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuses what is no id of the vocabulary."""
    if not ids:
        return
    others = set(map(type, ids)) - {int}
    if others:
        raise RequestError(
            f"{name} must hold integer token ids, not {others.pop().__name__}", param=name
        )
    worst = min(ids) if min(ids) < 0 else max(ids)
    if not 0 <= worst < vocab_size:
        raise RequestError(
            f"{name} has token id {short(worst)}, the vocabulary has ids 0 to {vocab_size - 1}",
            param=name,
        )


def check_list(name: str, items: object, of: str, most: int) -> Sequence[Any]:
    """``items`` when they are a list of at most ``most``; ``of`` says what it holds."""
    if not isinstance(items, list | tuple):
        raise RequestError(f"{name} must be a list of {of}", param=name)
    if len(items) > most:
        raise RequestError(f"{name} has {len(items)} {of}, at most {most} are allowed", param=name)
    return items


def check_text(name: str, text: object, most_bytes: int) -> str:
    """``text`` when it is one of at most ``most_bytes``, and not empty."""
    if not isinstance(text, str) or text == "":
        raise RequestError(f"{name} must hold non-empty strings", param=name)
    if len(text.encode("utf-8", "surrogatepass")) > most_bytes:
        raise RequestError(f"a string of {name} is longer than {most_bytes} bytes", param=name)
    return text


def short(value: object) -> str:
    """A value for a message; huge integers must not become megabytes of digits."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:80]
