"""The listening socket, opened before anything slow so that a taken port fails at once."""

from __future__ import annotations

import os
import resource
import socket
import stat
from typing import NamedTuple

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import ConfigError

BACKLOG = 2048
LOOPBACK = ("127.0.0.1", "::1", "localhost")
OTHER_FILES = 192
"""Descriptors for everything but client connections: those in reserve, the operator's, files."""


class Listeners(NamedTuple):
    """Where clients and, if anywhere, the operator connect."""

    clients: socket.socket
    admin: socket.socket | None


def open_listener(options: ServeOptions) -> socket.socket:
    """Raises ConfigError with the remedy when the address cannot be had."""
    try:
        return _open_unix(options.uds) if options.uds else _open_tcp(options.host, options.port)
    except OSError as error:
        where = options.uds or f"{options.host}:{options.port}"
        raise ConfigError(
            f"cannot listen on {where}: {error.strerror or error}: "
            "choose another --port, --host or --uds"
        ) from None


def open_admin_listener(options: ServeOptions) -> socket.socket | None:
    """None without an admin port. Raises ConfigError when its address cannot be had, or would be
    open to all."""
    host, port = options.admin_host, options.admin_port
    if port is None:
        return None
    if host not in LOOPBACK and options.admin_key is None:
        raise ConfigError(
            f"the admin port would be open to all who reach {host}: set --admin-key, or leave "
            "--admin-host at 127.0.0.1"
        )
    try:
        return _open_tcp(host, port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}: "
            "choose another --admin-port or --admin-host"
        ) from None


def limit_connections(asked: int) -> int:
    """Connections that can be open at once, at most ``asked``: each takes a file descriptor.

    The process's soft limit is raised as far as its hard limit allows.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = asked + OTHER_FILES if hard == resource.RLIM_INFINITY else hard
    if soft < asked + OTHER_FILES:
        soft = min(asked + OTHER_FILES, most)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(asked, soft - OTHER_FILES))


def address(listener: socket.socket) -> str:
    """Where clients find the server, as a URL without path."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"


def close_listener(listener: socket.socket, options: ServeOptions) -> None:
    listener.close()
    if options.uds and os.path.exists(options.uds):
        os.unlink(options.uds)


def _open_tcp(host: str, port: int) -> socket.socket:
    family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


def _open_unix(path: str) -> socket.socket:
    """Takes the place of a socket that nobody listens on any more, never of another file."""
    if os.path.exists(path) and stat.S_ISSOCK(os.stat(path).st_mode) and not _answers(path):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(path)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        return probe.connect_ex(path) == 0
