"""Addresses of servers: what is one, and why nobody answers there."""

from __future__ import annotations

import http.client
import socket
import ssl
from urllib.parse import SplitResult, urlsplit

from kvasir.core.errors import ConfigError

SCHEMES = ("http", "https")


def server_address(url: str, schemes: tuple[str, ...] = SCHEMES) -> SplitResult:
    """``url``, whose scheme may be left out. Raises ConfigError."""
    parts = urlsplit(url if "//" in url else f"//{url}", scheme="http")
    if parts.scheme not in schemes or not parts.hostname or not _has_port(parts):
        raise ConfigError(f"{url!r} is no address of a server: use http://host:port")
    return parts


def _has_port(parts: SplitResult) -> bool:
    """Whether the port is a number that can be one, or left out."""
    try:
        return parts.port != 0
    except ValueError:
        return False


def reason(error: OSError | http.client.HTTPException) -> str:
    """What went wrong, and what to do about it."""
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there: start a server (kvasir serve), or name another"
    if isinstance(error, ssl.SSLError):
        return f"{error}: a server without TLS is at http://"
    if isinstance(error, socket.gaierror):
        return f"{error.strerror}: check the host"
    if isinstance(error, http.client.HTTPException | ConnectionError):
        return f"it does not speak HTTP ({type(error).__name__}): check the port"
    return str(error) or type(error).__name__
