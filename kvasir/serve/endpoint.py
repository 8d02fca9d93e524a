"""A route as an ASGI application: authentication first, then the handler, and every error as
JSON."""

from __future__ import annotations

import hmac
import logging
import math
from collections.abc import Awaitable, Callable, Sequence

from starlette.types import Receive, Scope, Send

from kvasir.core.errors import KvasirError, RequestError
from kvasir.serve import sse
from kvasir.serve.allocator import LEFT_BYTES
from kvasir.serve.errors import describe_error
from kvasir.serve.exchange import ClientGone, Exchange
from kvasir.serve.origins import Guard
from kvasir.serve.service import Service

logger = logging.getLogger("kvasir.http")

Handler = Callable[[Service, Exchange], Awaitable[None]]


class Endpoint:
    """Asks for ``key``; None is a route that needs none. Only health routes are public, and they
    have no ``guards``."""

    def __init__(
        self, service: Service, handler: Handler, key: str | None, guards: Sequence[Guard] = ()
    ) -> None:
        self._key = key
        self._guards = guards
        self._service = service
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = Exchange(scope, receive, send, self._service.bodies)
        try:
            for guard in self._guards:
                guard(exchange)
            _authenticate(exchange, self._key)
            await self._handler(self._service, exchange)
        except ClientGone:
            self._service.leftovers.give_back_soon()
        except KvasirError as error:
            await self._fail(exchange, error)
        except Exception:
            logger.exception("unexpected error in %r", scope["path"])
            await self._fail(exchange, KvasirError("internal error: see the server's log"))
        if exchange.n_bytes >= LEFT_BYTES:
            self._service.leftovers.give_back_soon()

    async def _fail(self, exchange: Exchange, error: KvasirError) -> None:
        self._service.metrics.count_error(error.code)
        if exchange.started:
            await exchange.send_events(sse.event(describe_error(error)))
            await exchange.end_events()
            return
        await exchange.send_json(describe_error(error), error.status, _headers(error))


def _headers(error: KvasirError) -> list[tuple[bytes, bytes]]:
    if error.status in (429, 503):
        seconds = 1 if error.retry_after is None else max(1, math.ceil(error.retry_after))
        return [(b"retry-after", str(seconds).encode())]
    if error.status == 401:
        return [(b"www-authenticate", b"Bearer")]
    return []


def _authenticate(exchange: Exchange, api_key: str | None) -> None:
    """Raises RequestError (401). The comparison takes the same time wherever the keys differ."""
    if api_key is None:
        return
    scheme, _, given = (exchange.header(b"authorization") or b"").partition(b" ")
    matches = hmac.compare_digest(given.strip(), api_key.encode())
    if scheme.lower() != b"bearer" or not matches:
        raise RequestError(
            "a valid API key is needed: send Authorization: Bearer KEY",
            code="invalid_api_key",
            status=401,
        )
