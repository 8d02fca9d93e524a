"""A server's listening sockets pass to its successor over a Unix socket, and with them whoever
waits to be accepted: nobody is refused.

The successor gets the sockets when it connects, loads, says ``READY`` and begins to accept; then
the other stops accepting, answers what it has, and ends. One that fails before is forgotten.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from kvasir.core.errors import ConfigError
from kvasir.serve.peer import peer_uid

logger = logging.getLogger("kvasir.handover")

READY = b"ready"
DONE = b"done"
MAX_BYTES = 4096
MAX_SOCKETS = 8
GIVE_SECONDS = 10.0
"""For a predecessor that does not answer."""


class Taken(NamedTuple):
    """What a predecessor gave."""

    sockets: dict[str, socket.socket]
    connection: socket.socket

    def say_ready(self) -> None:
        """From now on this process accepts. Returns when the predecessor does no more; one that has
        ended does not either, and one that is stuck hears it when it goes on."""
        self.connection.settimeout(GIVE_SECONDS)
        with self.connection, suppress(OSError):
            try:
                self.connection.sendall(READY)
                self.connection.recv(MAX_BYTES)
            except TimeoutError:
                logger.warning(
                    "the server before does not answer for %.0f s: this one serves, and the other "
                    "accepts no more once it goes on; end it if it does not",
                    GIVE_SECONDS,
                )


def take(path: str) -> Taken | None:
    """What the server at ``path`` gives; None when there is none. Raises ConfigError when it gives
    nothing."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    connection.settimeout(GIVE_SECONDS)
    found: list[socket.socket] = []
    try:
        data, fds, _, _ = socket.recv_fds(connection, MAX_BYTES, MAX_SOCKETS)
        found += [socket.socket(fileno=fd) for fd in fds]
        names = msgspec.json.decode(data, type=list[str])
        sockets = dict(zip(names, found, strict=True))
    except (OSError, ValueError) as error:
        for each in (connection, *found):
            each.close()
        raise ConfigError(f"the server at {path} gives no sockets: {error}") from None
    connection.settimeout(None)
    return Taken(sockets, connection)


class Handover:
    """Where a successor finds ``sockets``."""

    def __init__(self, path: str, sockets: Mapping[str, socket.socket]) -> None:
        self._path = Path(path)
        self._sockets = sockets

    async def given(self) -> None:
        """Returns when a successor is ready: it is the one who accepts. Raises OSError when the
        path cannot be had."""
        listener = self._listen()
        try:
            while not await self._give(listener):
                continue
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise
        finally:
            listener.close()

    def _listen(self) -> socket.socket:
        if self._path.exists() and stat.S_ISSOCK(self._path.stat().st_mode):
            self._path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            listener.bind(str(self._path))
        finally:
            os.umask(before)
        listener.listen(1)
        listener.setblocking(False)
        return listener

    async def _give(self, listener: socket.socket) -> bool:
        """Whether the next who connects has taken them."""
        # Imported now: sockets are taken before the engine starts, and asyncio takes 20 ms.
        from asyncio import get_running_loop

        loop = get_running_loop()
        connection, _ = await loop.sock_accept(listener)
        with connection:
            connection.setblocking(False)
            if peer_uid(connection) not in (os.getuid(), 0):
                return False
            try:
                fds = [sock.fileno() for sock in self._sockets.values()]
                socket.send_fds(connection, [json.dumps(list(self._sockets)).encode()], fds)
                if await loop.sock_recv(connection, MAX_BYTES) != READY:
                    return False
            except OSError:
                return False
            listener.close()  # the path is the successor's
            with suppress(OSError):
                await loop.sock_sendall(connection, DONE)
        return True
