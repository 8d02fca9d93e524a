"""What systemd, and whoever starts services as it does, hands to a server and is told by it:
sd_listen_fds(3), sd_notify(3), sd_watchdog_enabled(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, MutableMapping
from contextlib import suppress

FIRST_FD = 3
ADMIN = "admin"
"""Name of the socket of the admin routes; the first with any other is that of clients."""


def take_sockets(environ: MutableMapping[str, str] = os.environ) -> dict[str, socket.socket]:
    """Listening sockets that this process was started with, by "clients" and "admin". Children are
    not told of them."""
    pid, n = environ.pop("LISTEN_PID", ""), environ.pop("LISTEN_FDS", "0")
    names = environ.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()) or not n.isdecimal():
        return {}
    found: dict[str, socket.socket] = {}
    for i in range(int(n)):
        name = ADMIN if names[i : i + 1] == [ADMIN] else "clients"
        sock = socket.socket(fileno=FIRST_FD + i)
        sock.set_inheritable(False)
        if found.setdefault(name, sock) is not sock:
            sock.close()
    return found


class Manager:
    """Who started this process, if it wants to know how it is."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = environ.get("NOTIFY_SOCKET", "")
        if environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            self._seconds = 0.0
        else:
            microseconds = environ.get("WATCHDOG_USEC", "0")
            self._seconds = int(microseconds) / 1e6 if microseconds.isdecimal() else 0.0

    def tell(self, *lines: str) -> None:
        """``READY=1`` and the like. A manager that is gone is told nothing."""
        if not self._address:
            return
        address = self._address
        if address.startswith("@"):
            address = "\0" + address[1:]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock, suppress(OSError):
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), address)

    async def watch(self) -> None:
        """Tells as often as it wants to know that the event loop goes on; returns when it does not
        want to."""
        # Imported now: sockets are taken before the engine starts, and asyncio takes 20 ms.
        from asyncio import sleep

        while self._seconds:
            self.tell("WATCHDOG=1")
            await sleep(self._seconds / 2)
