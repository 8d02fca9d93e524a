"""A server's listening sockets pass to its successor over a Unix socket, and with them whoever
waits to be accepted: nobody is refused.

A successor gets the sockets when it connects, loads, says ``READY`` and begins to accept; then the
other stops accepting, answers what it has, and ends. One that fails before is forgotten, and one
that is stuck keeps no other waiting: of several the first that is ready takes the place, and others
are told.
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
TAKEN = b"taken"
"""Another was ready before."""
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
        ended does not either, and one that is stuck hears it when it goes on. Raises ConfigError
        when another successor was ready before."""
        self.connection.settimeout(GIVE_SECONDS)
        with self.connection, suppress(OSError):
            try:
                with suppress(BrokenPipeError):  # what it said before is there
                    self.connection.sendall(READY)
                if self.connection.recv(MAX_BYTES) == TAKEN:
                    raise ConfigError("another successor has taken the sockets meanwhile")
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
            await self._first(listener)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise
        finally:
            listener.close()

    async def _first(self, listener: socket.socket) -> None:
        """Returns when one of those who connect is ready."""
        # Imported now: sockets are taken before the engine starts, and asyncio takes 20 ms.
        from asyncio import FIRST_COMPLETED, Task, create_task, gather, get_running_loop, wait

        accept = get_running_loop().sock_accept
        accepting = create_task(accept(listener))
        loading: set[Task[bool]] = set()
        try:
            while not any(task.done() and task.result() for task in loading):
                loading = {task for task in loading if not task.done()}
                if accepting.done():
                    connection, _ = accepting.result()
                    loading.add(create_task(self._give(connection, listener)))
                    accepting = create_task(accept(listener))
                await wait({accepting, *loading}, return_when=FIRST_COMPLETED)
        finally:
            for task in (accepting, *loading):
                task.cancel()
            await gather(accepting, *loading, return_exceptions=True)

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

    async def _give(self, connection: socket.socket, listener: socket.socket) -> bool:
        """Whether who is connected has taken them. Cut short, it is told that another has."""
        from asyncio import CancelledError, get_running_loop

        loop = get_running_loop()
        with connection, suppress(OSError):
            connection.setblocking(False)
            if peer_uid(connection) not in (os.getuid(), 0):
                return False
            try:
                fds = [sock.fileno() for sock in self._sockets.values()]
                socket.send_fds(connection, [json.dumps(list(self._sockets)).encode()], fds)
                if await loop.sock_recv(connection, MAX_BYTES) != READY:
                    return False
            except CancelledError:
                connection.send(TAKEN)
                raise
            listener.close()  # the path is the successor's
            with suppress(OSError):
                await loop.sock_sendall(connection, DONE)
            return True
        return False
