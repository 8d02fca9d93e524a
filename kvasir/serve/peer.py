"""Who is at the other end of a Unix socket."""

from __future__ import annotations

import socket
import struct

_CREDENTIALS = struct.Struct("iII")
"""``struct ucred``: pid, uid, gid (unix(7))."""


def peer_uid(connection: socket.socket) -> int | None:
    """User id of the process at the other end of a Unix socket, as it was when it connected; None
    where the system does not say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    return int(uid)
