"""The listening sockets, opened before anything slow so that a taken port fails at once: those
that the process was started with, those of a predecessor, or its own."""

from __future__ import annotations

import logging
import os
import resource
import socket
import stat
from ipaddress import ip_address
from typing import NamedTuple

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import ConfigError
from kvasir.serve.handover import Taken, take
from kvasir.serve.systemd import take_sockets

logger = logging.getLogger("kvasir.server")

BACKLOG = 2048
OTHER_FILES = 192
"""Descriptors for everything but client connections: those in reserve, the operator's, files."""


class Listeners(NamedTuple):
    """Where clients and, if anywhere, the operator connect."""

    clients: socket.socket
    admin: socket.socket | None = None
    admin_socket: socket.socket | None = None
    predecessor: Taken | None = None
    """Whose they were; it accepts until this process is ready."""

    @property
    def by_name(self) -> dict[str, socket.socket]:
        found = {"clients": self.clients, **self.admins}
        return {name: sock for name, sock in found.items() if sock is not None}

    @property
    def admins(self) -> dict[str, socket.socket | None]:
        """Those of the operator, each if there is one."""
        return {"admin": self.admin, "admin_socket": self.admin_socket}

    def close(self, options: ServeOptions) -> None:
        """Sockets that are files are gone then, unless another process listens there."""
        for listener in self.by_name.values():
            listener.close()
        for path in (options.uds, options.admin_uds):
            if path and os.path.exists(path) and not _answers(path):
                os.unlink(path)


def open_listeners(options: ServeOptions) -> Listeners:
    """Raises ConfigError with the remedy when an address cannot be had."""
    given, predecessor = take_sockets(), None
    if not given and options.handover is not None:
        predecessor = take(options.handover)
        given = {} if predecessor is None else predecessor.sockets
    for name, sock in given.items():
        if not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigError(
                f"the socket {name!r} that was handed to this process does not listen"
            )
    return Listeners(
        given.get("clients") or open_listener(options),
        given.get("admin") or open_admin_listener(options),
        given.get("admin_socket") or open_admin_socket(options),
        predecessor,
    )


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
    """None without an admin port. Raises ConfigError when its address cannot be had, or nobody
    could have a key for it."""
    host, port = options.admin_host, options.admin_port
    if port is None:
        return None
    if options.admin_key is None and options.api_key_file is None:
        raise ConfigError(
            f"the admin port would be open to every process that reaches {host}: set --admin-key, "
            "or --api-key-file with a key of scope admin, or take --admin-uds instead"
        )
    try:
        return _open_tcp(host, port)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host}:{port}: {error.strerror or error}: "
            "choose another --admin-port or --admin-host"
        ) from None


def open_admin_socket(options: ServeOptions) -> socket.socket | None:
    """None without one. Raises ConfigError where the system does not say who connects."""
    path = options.admin_uds
    if path is None:
        return None
    if not hasattr(socket, "SO_PEERCRED"):
        raise ConfigError("--admin-uds needs Linux: take --admin-port with --admin-key")
    try:
        listener = _open_unix(path)
        os.chmod(path, 0o600)
        return listener
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {path}: {error.strerror or error}: choose another --admin-uds"
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


def most_connections(asked: int) -> int:
    most = limit_connections(asked)
    if most < asked:
        logger.warning("%d connections at most: raise the limit of open files (ulimit -n)", most)
    return most


def is_loopback(host: str) -> bool:
    """Whether nobody reaches it from another machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def address(listener: socket.socket) -> str:
    """Where clients find the server, as a URL without path."""
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host = f"[{name[0]}]" if listener.family == socket.AF_INET6 else name[0]
    return f"http://{host}:{name[1]}"


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
