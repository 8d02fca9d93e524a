"""JSON that is too long to be copied in one piece: parts, written a bounded piece at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

Part = bytes | bytearray
Parts = list[Part]

HOLE_BYTE = b"\0"
HOLE = msgspec.Raw(HOLE_BYTE)
"""Stands in a value where parts come: no JSON has this byte."""
WRITE_BYTES = 2**18
"""Copied at a time: some tens of microseconds."""
TEXT_LENGTH = 2**16
"""Characters that are spelled in one call: at most a millisecond, where each is escaped."""

_json = msgspec.json.Encoder()


class Items:
    """Items of a JSON array, gathered in one growing block: many small ones would lie between what
    the process keeps, and their memory with them."""

    def __init__(self) -> None:
        self.data = bytearray()

    def extend(self, values: Sequence[Any]) -> None:
        if self.data and values:
            self.data += b","
        self.data += _json.encode(values)[1:-1]


def spelled(value: Any) -> Parts:
    """``value`` as JSON; long texts a bounded piece at a time."""
    texts: list[str] = []
    return filled(_hollow(value, texts), *map(_text, texts))


def _hollow(value: Any, texts: list[str]) -> Any:
    """``value`` with holes for its long texts, which are added to ``texts``."""
    if isinstance(value, str) and len(value) > TEXT_LENGTH:
        texts.append(value)
        return HOLE
    if isinstance(value, dict):
        return {name: _hollow(inner, texts) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hollow(inner, texts) for inner in value]
    return value


def _text(text: str) -> Iterator[Part]:
    yield b'"'
    for i in range(0, len(text), TEXT_LENGTH):
        yield _json.encode(text[i : i + TEXT_LENGTH])[1:-1]
    yield b'"'


def listed(items: Iterable[Parts]) -> Parts:
    """An array of ``items``."""
    found: Parts = []
    for item in items:
        found += [b"," if found else b"[", *item]
    return [*found, b"]"] if found else [b"[]"]


def filled(value: Any, *holes: Iterable[Part]) -> Parts:
    """``value`` as JSON, with parts where it has its HOLEs, which are as many as ``holes``."""
    before, *rest = _json.encode(value).split(HOLE_BYTE)
    found: Parts = [before]
    for parts, after in zip(holes, rest, strict=True):
        found += [*parts, after]
    return found


def flat(events: Sequence[Parts]) -> Parts:
    """All parts of ``events``, of which there is at least one."""
    return events[0] if len(events) == 1 else [part for event in events for part in event]


def emptied(parts: Parts) -> Iterator[Part]:
    """What ``parts`` hold, each no longer than it is needed."""
    parts.reverse()
    while parts:
        yield parts.pop()


def writes(parts: Iterable[Part]) -> Iterator[bytes]:
    """``parts`` together, cut into pieces of WRITE_BYTES."""
    waiting: list[memoryview] = []
    size = 0
    for part in parts:
        left = memoryview(part)
        while left:
            piece = left[: WRITE_BYTES - size]
            left = left[len(piece) :]
            waiting.append(piece)
            size += len(piece)
            if size == WRITE_BYTES:
                yield b"".join(waiting)
                waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
