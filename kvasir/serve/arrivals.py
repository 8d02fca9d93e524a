"""Requests begin in turns: a thousand that come together hold the event loop no longer than one."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Receive, Scope, Send

from kvasir.serve.http_limits import is_health
from kvasir.serve.slices import Slices

ARRIVED = "kvasir.arrived"
"""Where a scope has when its request came: seconds of the machine's monotonic clock."""


def in_turns(app: ASGIApp, slices: Slices) -> ASGIApp:
    """``app``, which is given a request when a slice has time for its beginning: to find its route,
    check its key and read a small body takes a fraction of a millisecond. Health routes wait for
    nobody."""

    async def begin(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not is_health(scope["raw_path"]):
            scope[ARRIVED] = time.monotonic()
            await slices.turn()
        await app(scope, receive, send)

    return begin
