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
