"""uvicorn's HTTP/1.1 protocol with bounds on sizes, rates and times, enforced while bytes
arrive."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from kvasir.serve.chunks import EXTENSION, Chunks
from kvasir.serve.connections import Connections, Patience, Place
from kvasir.serve.errors import error_body
from kvasir.serve.http10 import is_older, without_chunks
from kvasir.serve.http_limits import (
    MAX_FRAMING,
    MAX_PIPELINED,
    MAX_TARGET_BYTES,
    HttpLimits,
    Refusal,
    body_length,
    check_headers,
    check_target,
    is_health,
)
from kvasir.serve.peer import peer_uid

FEED_BYTES = 512
"""Fed to the parser at a time where a length is not known: how far a limit can be overrun."""
LINGER_SECONDS = 2.0
"""How long a client that is answered may go on sending its body, so that it can read the answer."""
LINGER_PAUSE = 0.02
"""Between two reads, of up to 256 KiB, of what it sends."""

SECOND_LOOK = 0.01
"""Seconds between the end of a client's time and what that has for it."""

IDLE, HEAD, BODY = "idle", "head", "body"


class _Door:
    """A transport whose orderly end is the protocol's."""

    def __init__(self, transport: asyncio.Transport, protocol: BoundedHttpProtocol) -> None:
        self.write = transport.write
        self._transport = transport
        self._protocol = weakref.ref(protocol)  # which has it: nothing is left to collect garbage

    def close(self) -> None:
        (self._protocol() or self._transport).close()

    def is_closing(self) -> bool:
        protocol = self._protocol()
        return (protocol is not None and protocol.lingers) or self._transport.is_closing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedHttpProtocol(HttpToolsProtocol):
    """Refuses with a JSON error and closes. A response that has begun is cut off instead.

    A request that is answered before its body is there is the connection's last, and says so.
    """

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: HttpLimits,
        connections: Connections,
    ) -> None:
        """``connections`` is shared by all that listen at one address."""
        super().__init__(config, server_state, app_state, _loop)
        self._socket: asyncio.Transport
        self._place: Place
        self.limits = limits
        self.lingers = False
        """Whether everything is said, and what still arrives is thrown away."""
        self._table = connections
        self._phase = IDLE
        self._keeps = True
        self._head_bytes = 0
        self._body_limit = limits.body_bytes
        self._body_length: int | None = None
        self._body_bytes = 0
        self._framing_bytes = 0
        self._body_started = 0.0
        self._body_due = 0.0
        self._refusal: Refusal | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._socket = transport
        self._place = Place(transport.abort)  # it has nothing left to send
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            self.app_state = {**self.app_state, "peer_uid": peer_uid(connection)}
        super().connection_made(_Door(transport, self))  # type: ignore[arg-type]
        self._table.enter(self._place)
        self._arm(self.limits.header_timeout, self._head_overdue)

    def close(self) -> None:
        """Ends the connection once its client had time to read what was sent."""
        if not self.lingers and not self._socket.is_closing():
            self._linger() if self._phase == BODY else self._end()

    def _linger(self) -> None:
        """Closing while bytes arrive would reset the connection, and the answer be lost."""
        self.lingers = True
        self._body_bytes = 0
        self.flow.resume_reading()
        if self._socket.can_write_eof():
            self._socket.write_eof()
        self._table.wait(self._place, Patience.LINGERING)
        self._arm(LINGER_SECONDS, self._end)

    def _throw_away(self, data: bytes) -> None:
        """Not as fast as it comes: that would leave others no time."""
        self._body_bytes += len(data)
        if self._body_bytes > self.limits.body_bytes:
            self._end()
        else:
            self._socket.pause_reading()
            self.loop.call_later(LINGER_PAUSE, self._resume_lingering)

    def _resume_lingering(self) -> None:
        if not self._socket.is_closing():
            self._socket.resume_reading()

    def _end(self) -> None:
        """What is written is still sent, for as long as the client reads it."""
        self._socket.close()
        self._disarm_writing()
        self._write_timer = self.loop.call_later(self.limits.write_timeout, self._write_overdue)

    def shutdown(self) -> None:
        self._keeps = False
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._table.leave(self._place)
        self._disarm()
        super().connection_lost(exc)
        self._disarm_writing()

    def pause_writing(self) -> None:
        """The write buffer is full: the client has ``write_timeout`` to read most of it."""
        super().pause_writing()
        self._disarm_writing()
        self._write_timer = self.loop.call_later(self.limits.write_timeout, self._write_overdue)

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._socket.is_closing():
            self._disarm_writing()

    def _write_overdue(self) -> None:
        self._write_timer = self.loop.call_later(SECOND_LOOK, self._socket.abort)

    def _disarm_writing(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def data_received(self, data: bytes) -> None:
        if self.lingers:
            self._throw_away(data)
            return
        self._unset_keepalive_if_required()
        if self._phase == IDLE:
            self._begin_head()
        start = 0
        while start < len(data) and not self.transport.is_closing():
            step = self._step()
            self._feed(data[start : start + step])
            start += step

    def _begin_head(self) -> None:
        self._phase, self._head_bytes = HEAD, 0
        self._arm(self.limits.header_timeout, self._head_overdue)

    def _step(self) -> int:
        """Bytes to feed: never across the end of a body whose length is known."""
        if self._phase == BODY and self._body_length is not None:
            return max(1, self._body_length - self._body_bytes)
        return FEED_BYTES

    def _feed(self, data: bytes) -> None:
        phase, n_body = self._phase, self._body_bytes
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or Refusal(400, "the request is not valid HTTP/1.1"))
            return
        except httptools.HttpParserUpgrade:
            self._refuse(Refusal(400, "protocol upgrades are not supported: use plain HTTP/1.1"))
            return
        if phase != BODY and self._phase == HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                self._refuse(self._head_too_large())
        elif phase == BODY and self._phase == BODY:
            self._framing_bytes += len(data) - max(0, self._body_bytes - n_body)
            if self._framing_bytes > MAX_FRAMING + self._body_bytes // 16:
                self._refuse(self._framing_too_large())

    def _head_too_large(self) -> Refusal:
        if len(self.url) == 0 or not self.headers:
            return Refusal(414, f"the request line exceeds {self.limits.head_bytes} bytes")
        return Refusal(431, f"the headers exceed {self.limits.head_bytes} bytes")

    def _framing_too_large(self) -> Refusal:
        return Refusal(
            413,
            f"{self._framing_bytes} bytes frame a chunked body of {self._body_bytes}: send larger "
            "chunks, or a Content-Length",
        )

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
        refusal = self._check_head()
        if refusal is not None:
            self._stop(refusal)
        self._table.work(self._place)
        self._phase, self._body_bytes, self._framing_bytes = BODY, 0, 0
        self._body_started = self.loop.time()
        self._body_due = self._body_started + self.limits.body_timeout
        self._arm(self.limits.body_timeout, self._body_overdue)
        super().on_headers_complete()
        is_last = self._place.is_reserve or self._table.is_ending
        self._keeps = self.cycle.keep_alive and not is_last
        self.cycle.keep_alive = False  # until the whole body is there

    def _check_head(self) -> Refusal | None:
        refusal = check_target(self.url)
        refusal = refusal or check_headers(self.headers, self.parser.get_http_version())
        if refusal is not None:
            return refusal
        if self._place.is_reserve and not is_health(self.url):
            return Refusal(
                503,
                f"all {self._table.limit} connections are taken: try again, or raise "
                "--max-connections",
                retry_after=1,
            )
        self._body_limit = self.limits.body_limit(self.url)
        self._body_length = body_length(self.headers)
        if (self._body_length or 0) > self._body_limit:
            return self._body_too_large()
        if self.parser.should_upgrade():
            return Refusal(400, "protocol upgrades are not supported: use plain HTTP/1.1")
        if len(self.pipeline) >= MAX_PIPELINED:
            return Refusal(400, f"more than {MAX_PIPELINED} requests wait behind another")
        return None

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        cycle.scope["extensions"] = {EXTENSION: Chunks(cycle)}
        if is_older(cycle.scope["http_version"]):
            app = without_chunks(cycle, app)
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit:
            self._stop(self._body_too_large())
        due = self._body_due + len(body) / self.limits.body_rate
        self._body_due = min(due, self.loop.time() + self.limits.body_timeout)
        super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.cycle.response_started:
            self.cycle.keep_alive = self._keeps
        self._disarm()
        self._phase = IDLE

    def on_response_complete(self) -> None:
        super().on_response_complete()
        is_idle = not self.transport.is_closing() and not self._is_answering and self._phase != BODY
        if is_idle and self._socket.get_write_buffer_size() == 0:
            self._table.wait(self._place, Patience.IDLE)

    def _body_too_large(self) -> Refusal:
        return Refusal(413, f"the body exceeds {self._body_limit} bytes")

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
        """Each byte brings the end ``1 / body_rate`` seconds later, but never further away than
        ``body_timeout``: a body is there in time for its length, and never rests for longer."""
        now = self.loop.time()
        if self.flow.read_paused:  # it is the server that does not read
            self._body_due = now + self.limits.body_timeout
        if now < self._body_due:
            self._arm(self._body_due - now, self._body_overdue)
            return
        self._refuse(
            Refusal(
                408,
                f"{self._body_bytes} bytes of the body in {now - self._body_started:.0f} s are "
                f"slower than {self.limits.body_rate} bytes/s",
            )
        )

    def _arm(self, seconds: float, overdue: Callable[[], None]) -> None:
        self._disarm()
        self._timer = self.loop.call_later(seconds, self._look_again, overdue)

    def _look_again(self, overdue: Callable[[], None]) -> None:
        """What came while the loop stood still is read first: its timers are before its sockets."""
        self._timer = self.loop.call_later(SECOND_LOOK, overdue)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, refusal: Refusal) -> None:
        if self.transport.is_closing():
            return
        is_told = self._has_told()
        if self._is_answering:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.pipeline.clear()
        if is_told:
            self._end()
            return
        self._socket.write(_response(refusal))
        self._linger()

    def _has_told(self) -> bool:
        """Whether a refusal would land inside another response, or behind that of its request."""
        if self._is_answering:
            return self.cycle.response_started or bool(self.pipeline) or self._phase == HEAD
        return self.cycle is not None and self._phase == BODY


def _response(refusal: Refusal) -> bytes:
    body = error_body(refusal.message, status=refusal.status, param=None, code="http_refused")
    head = [
        STATUS_LINE[refusal.status].rstrip(),
        b"content-type: application/json",
        b"connection: close",
        b"content-length: %d" % len(body),
    ]
    if refusal.retry_after is not None:
        head.append(b"retry-after: %d" % refusal.retry_after)
    return b"\r\n".join((*head, b"", body))
