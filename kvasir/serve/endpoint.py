"""A route as an ASGI application: guards and authentication first, then the handler, and every
error as JSON."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Literal

from starlette.types import Receive, Scope, Send

from kvasir.core.errors import KvasirError
from kvasir.serve.allocator import LEFT_BYTES
from kvasir.serve.answer import Form
from kvasir.serve.errors import describe_error
from kvasir.serve.exchange import ClientGone, Exchange
from kvasir.serve.keys.key import Scope as KeyScope
from kvasir.serve.logs import current_request
from kvasir.serve.planes import Plane
from kvasir.serve.service import Service

logger = logging.getLogger("kvasir.http")

Handler = Callable[[Service, Exchange], Awaitable[None]]
Access = KeyScope | Literal["public", "any"]
"""What a route asks of a key: a scope, nothing at all, or that it is one."""
UNMETERED: tuple[Access, ...] = ("public", "metrics", "admin")
"""A key's limits are those of its requests to models and to what they left."""


class Endpoint:
    def __init__(
        self,
        service: Service,
        handler: Handler,
        plane: Plane,
        access: Access,
        form: Form = describe_error,
    ) -> None:
        """``form``: how the route words its errors."""
        self._service = service
        self._handler = handler
        self._plane = plane
        self._access = access
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.bodies)
        current_request.set(exchange.id)
        exchange.n_noted = self._service.n_noted
        try:
            if self._access != "public":
                self._let_in(exchange, self._access)
            if self._access in UNMETERED:
                await self._handler(self._service, exchange)
            else:
                await self._metered(exchange)
        except ClientGone:
            exchange.note({"error": "client_gone"})
            self._service.leftovers.give_back_soon()
        except KvasirError as error:
            await self._fail(exchange, error)
        except Exception:
            logger.exception("unexpected error in %r", scope["path"])
            await self._fail(exchange, KvasirError("internal error: see the server's log"))
        if exchange.n_bytes >= LEFT_BYTES:
            self._service.leftovers.give_back_soon()
        for observer in self._service.observers:
            observer(exchange)
        self._check_first_token(exchange)

    def _check_first_token(self, exchange: Exchange) -> None:
        """Of an exchange that has ended."""
        service = self._service
        served = service.served.find(str(exchange.notes.get("response", "")))
        if served is not None:
            client = service.models[served.model].client
            explain = partial(service.explanations.before, client, served)
            service.late.check(exchange, served, service.options.ttft_target_ms, explain)

    def _let_in(self, exchange: Exchange, access: KeyScope | Literal["any"]) -> None:
        """Raises RequestError (401, 403)."""
        for guard in self._plane.guards:
            guard(exchange)
        exchange.caller = self._plane.caller(exchange)
        if access != "any":
            exchange.caller.check(access)

    async def _metered(self, exchange: Exchange) -> None:
        """Raises CapacityError (429) at a limit of the key."""
        meter = self._service.keys.meter(exchange.caller)
        try:
            meter.begin()
        finally:
            exchange.headers = meter.headers()
        service = self._service
        try:
            await service.state.repeats.run(
                exchange, service.owner(exchange), lambda: self._handler(service, exchange)
            )
        finally:
            meter.end()

    async def _fail(self, exchange: Exchange, error: KvasirError) -> None:
        self._service.metrics.count_error(error.code)
        exchange.note({"error": error.code})
        if exchange.started:
            if exchange.failure is not None:
                await exchange.send_events(exchange.failure(error))
            await exchange.end_events()
            return
        await exchange.send_json(self._form(error), error.status, _headers(error))


def _headers(error: KvasirError) -> list[tuple[bytes, bytes]]:
    if error.status in (429, 503):
        seconds = 1 if error.retry_after is None else max(1, math.ceil(error.retry_after))
        return [(b"retry-after", str(seconds).encode())]
    if error.status == 401:
        return [(b"www-authenticate", b"Bearer")]
    return []
