"""Frames between API process and engine process: a 4-byte big-endian length, then a payload.

Imports little: an engine process is started with it.
"""

from __future__ import annotations

import socket
import struct

from kvasir.core.errors import KvasirError

MAX_FRAME = 256 * 2**20
"""Bytes. A prompt of a million ids is 5 MiB, its scores with 20 alternatives each are 200 MiB."""

LENGTH = struct.Struct(">I")


class FrameError(KvasirError):
    """The other side broke the framing; the connection cannot be used further."""

    code = "engine_fault"


def pack(payload: bytes) -> bytes:
    """``payload`` with its length in front."""
    check_length(len(payload))
    return LENGTH.pack(len(payload)) + payload


def receive(sock: socket.socket) -> bytes | None:
    """The next payload of a blocking socket, None at the end of the stream."""
    head = _receive_exactly(sock, LENGTH.size)
    if head is None:
        return None
    (length,) = LENGTH.unpack(head)
    check_length(length)
    return _receive_exactly(sock, length)


def _receive_exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray(count)
    view = memoryview(data)
    while view:
        got = sock.recv_into(view)
        if got == 0:
            return None
        view = view[got:]
    return bytes(data)


def check_length(length: int) -> None:
    """Raises FrameError above ``MAX_FRAME``."""
    if length > MAX_FRAME:
        raise FrameError(f"a frame of {length} bytes exceeds the limit of {MAX_FRAME}")
