"""Who may come in where: clients at their address, the operator on a port with a key, or on a
socket by the credentials of the process."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvasir.core.errors import RequestError
from kvasir.serve.exchange import Exchange
from kvasir.serve.keys.caller import OPERATOR, Caller
from kvasir.serve.origins import Guard, admin_guards, guards
from kvasir.serve.service import Service


@dataclass(frozen=True)
class Plane:
    guards: Sequence[Guard]
    """For all routes but the public ones."""
    caller: Callable[[Exchange], Caller]
    """Raises RequestError (401, 403)."""


def client_plane(service: Service) -> Plane:
    def caller(exchange: Exchange) -> Caller:
        return service.keys.client(exchange.key)

    return Plane(guards(service.options), caller)


def admin_plane(service: Service) -> Plane:
    def caller(exchange: Exchange) -> Caller:
        return service.keys.known(exchange.key)

    return Plane(admin_guards(service.options), caller)


def admin_socket_plane(service: Service) -> Plane:
    """The peer is the credential: keys are not asked for."""
    return Plane(admin_guards(service.options), peer)


def peer(exchange: Exchange) -> Caller:
    """Raises RequestError (403) for another user's process."""
    uid = exchange.scope.get("state", {}).get("peer_uid")
    if uid not in (0, os.geteuid()):
        raise RequestError(
            f"the admin socket is for the server's own user and root, not for user {uid}",
            code="foreign_user",
            status=403,
        )
    return OPERATOR
