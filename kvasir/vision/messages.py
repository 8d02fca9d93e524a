"""What is said to the process that reads images, and by it: msgpack behind 4 bytes of length."""

from __future__ import annotations

import struct
from typing import BinaryIO

import msgspec

from kvasir.core.tiles import Canvas

LENGTH = struct.Struct(">I")


class Tiles(msgspec.Struct, frozen=True, tag="tiles"):
    """``rows`` x ``columns`` tiles of an image and one of the whole behind them; or, where both are
    0, that one alone."""

    rows: int
    columns: int
    pixels: tuple[bytes, ...]
    """Of each tile uint8 [size, size, 3]."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """Pixels of each ``Media`` that becomes of it."""
        return self.pixels


class Uncut(msgspec.Struct, frozen=True, tag="uncut"):
    """An image that is not cut, of ``lines`` x ``columns`` tokens."""

    lines: int
    columns: int
    pixels: bytes
    """uint8 [height, width, 3]."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """As of ``Tiles``."""
        return (self.pixels,)


class Paved(msgspec.Struct, frozen=True, tag="paved"):
    """An image as one tile, and in its shape as several, of whose rows ``lines`` x ``columns`` are
    left, those behind the lines not counted; of a very narrow one these alone may be left."""

    lines: int
    columns: int
    canvas: Canvas
    whole: bytes
    """As of ``Tiles``."""
    pixels: bytes
    """Of all other tiles, line by line."""

    @property
    def parts(self) -> tuple[bytes, ...]:
        """As of ``Tiles``."""
        return (self.whole, self.pixels) if self.lines else (self.whole,)


class Unreadable(msgspec.Struct, frozen=True, tag="unreadable"):
    """Why there are none, for who sent the image."""

    message: str


Read = Tiles | Uncut | Paved
Answer = Read | Unreadable
decoder = msgspec.msgpack.Decoder(Answer)


def framed(data: bytes) -> bytes:
    return LENGTH.pack(len(data)) + data


def read_frame(source: BinaryIO) -> bytes | None:
    """None at the end."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (n,) = LENGTH.unpack(head)
    data = source.read(n)
    return data if len(data) == n else None
