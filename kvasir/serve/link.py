"""The API process's end of the connection with one engine process."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.core.messages import Ready
from kvasir.serve import frames, framing
from kvasir.serve.messages import Fatal, FromEngine, ToEngine
from kvasir.serve.pixels import PixelsTold
from kvasir.serve.texts import TextsTold

MAX_UNREAD = 2**20
"""Bytes that are written ahead of what the engine process reads, where a message can wait."""
READ_BUFFER = 2**16
"""Bytes that asyncio reads ahead: an engine that is faster than its readers waits for them."""


class BadStart(KvasirError):
    """The engine process could not begin to serve, in its own words."""

    code = "engine_down"
    status = 503


class Link:
    """Messages there and back. Lives in one event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._texts = TextsTold()
        self._pixels = PixelsTold()

    @classmethod
    async def open(cls, sock: socket.socket) -> Link:
        """``sock`` is the link's from now on."""
        return cls(*await asyncio.open_unix_connection(sock=sock, limit=READ_BUFFER))

    def send(self, message: ToEngine) -> None:
        """What an engine that has ended does not hear is in the token logs."""
        for part in self._texts.named(self._pixels.without(message)):
            self._writer.write(frames.encode(part))

    @property
    def is_full(self) -> bool:
        """So much is written that the engine process did not read that more should wait."""
        return self._writer.transport.get_write_buffer_size() > MAX_UNREAD

    async def drain(self) -> None:
        """Returns when it has read most of it, or has ended."""
        with suppress(ConnectionError):
            await self._writer.drain()

    async def read(self) -> FromEngine | None:
        """The next message, None at the end of the connection (also inside a frame). Raises
        FrameError when it is none."""
        try:
            (length,) = framing.LENGTH.unpack(await self._reader.readexactly(framing.LENGTH.size))
            framing.check_length(length)
            return frames.decode_from_engine(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise framing.FrameError(
                f"the engine process sent what is not a message: {error}"
            ) from error

    async def ready(self) -> Ready | None:
        """What a new engine begins with; None when it ended before. Raises BadStart with its words,
        and FrameError."""
        message = await self.read()
        if isinstance(message, Fatal):
            raise BadStart(message.message)
        if message is not None and not isinstance(message, Ready):
            raise framing.FrameError(f"the engine process began with {type(message).__name__}")
        return message

    def close(self) -> None:
        self._writer.close()
