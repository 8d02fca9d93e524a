"""Why there is no server at an address, and what to do about it."""

from __future__ import annotations

import http.client
import socket
import ssl
from urllib.parse import SplitResult


def has_port(parts: SplitResult) -> bool:
    """Whether the port is a number that can be one, or left out."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def reason(error: OSError | http.client.HTTPException) -> str:
    """What went wrong, and what to do about it."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: start a server (kvasir serve), or name another with --url"
    if isinstance(error, ssl.SSLError):
        return f"{error}: a server without TLS is at http://"
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}: check the host in --url"
    if isinstance(error, http.client.HTTPException | ConnectionError):
        return f"it does not speak HTTP ({type(error).__name__}): check the port in --url"
    return str(error)
