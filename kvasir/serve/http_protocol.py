"""uvicorn's HTTP/1.1 protocol with bounds on sizes, rates and times, enforced while bytes
arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from kvasir.serve.errors import error_body
from kvasir.serve.http10 import is_older, without_chunks
from kvasir.serve.http_limits import (
    MAX_TARGET_BYTES,
    HttpLimits,
    Refusal,
    check_headers,
    check_target,
    content_length,
)

FEED_BYTES = 4096
"""Fed to the parser at a time until the headers are complete: how far a limit can be overrun."""
LINGER_SECONDS = 2.0
"""How long a refused client may go on sending, so that it can read why."""

IDLE, HEAD, BODY = "idle", "head", "body"


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses with a JSON error and closes. A response that has begun is cut off instead."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: HttpLimits,
        waiting: dict[BoundedHttpProtocol, None],
    ) -> None:
        """``waiting`` is shared: connections without a request's complete head, longest first."""
        super().__init__(config, server_state, app_state, _loop)
        self.limits = limits
        self._waiting = waiting
        self._phase = IDLE
        self._has_asked = False
        self._head_bytes = 0
        self._body_bytes = 0
        self._body_started = 0.0
        self._refusal: Refusal | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waiting[self] = None
        if len(self.connections) > self.limits.n_connections:
            self._make_room()
        self._arm(self.limits.header_timeout, self._head_overdue)

    def _make_room(self) -> None:
        """Close what waits longest, of those that never asked anything if there are some: a client
        that keeps its connection may be sending its next request right now."""
        silent = (x for x in self._waiting if x is not self and not x._has_asked)
        longest = next(silent, None) or next(iter(self._waiting))
        del self._waiting[longest]
        longest.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.pop(self, None)
        self._disarm()
        self._disarm_writing()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The write buffer is full: the client has ``write_timeout`` to read most of it."""
        super().pause_writing()
        self._disarm_writing()
        self._write_timer = self.loop.call_later(self.limits.write_timeout, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._disarm_writing()

    def _disarm_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        if self._phase == IDLE:
            self._begin_head()
        view = memoryview(data)
        while view and self._refusal is None and not self.transport.is_closing():
            step = len(view) if self._phase == BODY else FEED_BYTES
            self._feed(bytes(view[:step]))
            view = view[step:]

    def _begin_head(self) -> None:
        self._phase, self._head_bytes = HEAD, 0
        self._arm(self.limits.header_timeout, self._head_overdue)

    def _feed(self, data: bytes) -> None:
        was_head = self._phase != BODY
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or Refusal(400, "the request is not valid HTTP/1.1"))
            return
        except httptools.HttpParserUpgrade:
            self._refuse(Refusal(400, "protocol upgrades are not supported: use plain HTTP/1.1"))
            return
        if was_head and self._phase == HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(self._head_too_large())

    def _head_too_large(self) -> Refusal:
        if len(self.url) == 0 or not self.headers:
            return Refusal(414, f"the request line exceeds {self.limits.head_bytes} bytes")
        return Refusal(431, f"the headers exceed {self.limits.head_bytes} bytes")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._phase == IDLE:
            self._begin_head()

    def on_url(self, url: bytes) -> None:
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._stop(Refusal(414, f"the request target exceeds {MAX_TARGET_BYTES} bytes"))

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > self.limits.n_headers:
            self._stop(Refusal(431, f"more than {self.limits.n_headers} headers"))

    def on_headers_complete(self) -> None:
        refusal = check_target(self.url)
        refusal = refusal or check_headers(self.headers, self.parser.get_http_version())
        if refusal is None and content_length(self.headers) > self.limits.body_bytes:
            refusal = self._body_too_large()
        if refusal is None and self.parser.should_upgrade():
            refusal = Refusal(400, "protocol upgrades are not supported: use plain HTTP/1.1")
        if refusal is not None:
            self._stop(refusal)
        self._waiting.pop(self, None)
        self._has_asked = True
        self._phase, self._body_bytes = BODY, 0
        self._body_started = self.loop.time()
        self._arm(self.limits.body_timeout, self._body_overdue)
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if is_older(cycle.scope["http_version"]):
            app = without_chunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.limits.body_bytes:
            self._stop(self._body_too_large())
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._disarm()
        self._phase = IDLE

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing() and not self._is_answering and self._phase != BODY:
            self._waiting[self] = None

    def _body_too_large(self) -> Refusal:
        return Refusal(413, f"the body exceeds {self.limits.body_bytes} bytes")

    def _stop(self, refusal: Refusal) -> None:
        """Leave the parser from one of its callbacks; ``_feed`` refuses."""
        self._refusal = refusal
        raise ValueError(refusal.message)

    @property
    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _head_overdue(self) -> None:
        if self._phase == IDLE:
            self.transport.close()
            return
        if self._is_answering:  # stray bytes behind a request do not end it
            self._arm(self.limits.header_timeout, self._head_overdue)
            return
        self._refuse(
            Refusal(408, f"the headers did not arrive within {self.limits.header_timeout} s")
        )

    def _body_overdue(self) -> None:
        elapsed = self.loop.time() - self._body_started
        if self._body_bytes < (elapsed - self.limits.body_timeout + 1) * self.limits.body_rate:
            self._refuse(
                Refusal(408, f"the body arrives slower than {self.limits.body_rate} bytes/s")
            )
            return
        self._arm(1.0, self._body_overdue)

    def _arm(self, seconds: float, overdue: Any) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, overdue)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, refusal: Refusal) -> None:
        self._disarm()
        self._refusal = refusal
        if self.transport.is_closing():
            return
        is_told = self._has_told()
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.pipeline.clear()
        if is_told:
            self.transport.close()
            return
        self.flow.resume_reading()
        self.transport.write(_response(refusal))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _has_told(self) -> bool:
        """Whether a refusal would land inside another response, or behind that of its request."""
        if self._is_answering:
            return self.cycle.response_started or bool(self.pipeline) or self._phase == HEAD
        return self.cycle is not None and self._phase == BODY


def _response(refusal: Refusal) -> bytes:
    body = error_body(refusal.message, status=refusal.status, param=None, code="http_refused")
    head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: "
    return b"".join((STATUS_LINE[refusal.status], head, str(len(body)).encode(), b"\r\n\r\n", body))
