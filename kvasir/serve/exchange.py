"""One HTTP exchange over raw ASGI: body in, JSON or events out, and whether the client is still
there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
)
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from kvasir.core.errors import KvasirError, RequestError
from kvasir.serve.answer import Grammar
from kvasir.serve.arrivals import ARRIVED
from kvasir.serve.backpressure import Backpressure
from kvasir.serve.bodies import SMALL_BYTES, Body, BodyBudget, joined
from kvasir.serve.chunks import EXTENSION, Chunks
from kvasir.serve.jsonbody import parse_object
from kvasir.serve.keys.caller import ANYONE, Caller
from kvasir.serve.parts import WRITE_BYTES, Part, Parts, emptied, flat, writes
from kvasir.serve.request_ids import HEADER, request_id

INLINE_BYTES = 8 * 1024
"""Bodies up to this size are parsed on the event loop (below a millisecond, whatever they hold),
larger ones in a thread."""

Read = TypeVar("Read")
_json = msgspec.json.Encoder()
Headers = Iterable[tuple[bytes, bytes]]
Failure = Callable[[KvasirError], bytes]
Value = TypeVar("Value")
Work = Callable[[], Coroutine[Any, Any, Value]]
Disconnected = Callable[[], Coroutine[Any, Any, None]]


class ClientGone(Exception):
    """The client closed the connection; nobody waits for an answer."""


class Exchange:
    """Reads at most one body and sends at most one response."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, bodies: BodyBudget) -> None:
        self.scope = scope
        self.started = False
        """Whether the response has begun, so that its status cannot change any more."""
        self.arrived: float = scope.get(ARRIVED) or time.monotonic()
        self.failure: Failure | None = None
        """Words an error that ends a stream; None before one has begun."""
        self.caller: Caller = ANYONE
        """Whose it is, once its key was read."""
        self.headers: Headers = ()
        """Of the answer, whatever it is."""
        self.id = request_id(self.header(HEADER))
        self.status = 0
        """Of the response; 0 before it has begun."""
        self.notes: dict[str, object] = {}
        """What logs and traces say of it."""
        self.n_noted = 0
        """Bytes of the body that are noted as ``body``."""
        self.backpressure = Backpressure()
        """Of its response, but for a short one that is not streamed."""
        self._receive = receive
        self._send = send
        self._bodies = bodies
        self._place = LanePlace(bodies, 0)
        """Of what is within ``reading``."""
        self._n_bytes = 0
        """Of the body and of what was sent, but for what went by way of ``outlet``."""
        self.outlet: Chunks | None = scope.get("extensions", {}).get(EXTENSION)
        """Where events of a stream that has begun go without waiting; None where they cannot."""

    @property
    def n_bytes(self) -> int:
        """Of the body and of what was sent."""
        return self._n_bytes + (0 if self.outlet is None else self.outlet.n_bytes)

    @property
    def path_params(self) -> dict[str, Any]:
        return dict(self.scope.get("path_params", {}))

    def header(self, name: bytes) -> bytes | None:
        """The first header called ``name`` (lower case)."""
        return next((value for key, value in self.scope["headers"] if key == name), None)

    @property
    def key(self) -> bytes:
        """The secret that it came with: a bearer token, or Anthropic's header; else empty."""
        scheme, _, given = (self.header(b"authorization") or b"").partition(b" ")
        return given.strip() if scheme.lower() == b"bearer" else self.header(b"x-api-key") or b""

    def note(self, values: Mapping[str, object]) -> None:
        """More to say of it, for logs and traces."""
        self.notes.update(values)

    @asynccontextmanager
    async def reading(
        self, read: Callable[[dict[str, Any]], Read], media: Collection[bytes] = ()
    ) -> AsyncIterator[Read]:
        """What ``read`` makes of the body, of type application/json or one of ``media``. A large
        one is read in a thread, and others wait until the block has ended. Raises RequestError
        (400, 413, 415), BodiesFull (503), or ClientGone when the body ends early."""
        self._check_media_type(media)
        async with AsyncExitStack() as stack:
            with self._bodies.body() as body:
                await self._read_body(body)
                parts = body.complete()
                self._n_bytes += body.size
                if self.n_noted:
                    self.notes["body"] = _beginning(parts, self.n_noted)
                self._place = LanePlace(self._bodies, body.size)
                if body.size <= INLINE_BYTES:
                    value = read(parse_object(b"".join(parts)))
                else:
                    await self._place.take(self.disconnected)
                    stack.callback(self._place.leave)
                    value = await asyncio.to_thread(lambda: read(parse_object(joined(parts))))
            yield value

    async def aside(self, work: Work[Value]) -> Value:
        """Within ``reading``: what ``work`` returns, which waits for something. Others are read
        meanwhile. Raises ClientGone, BodiesFull (503)."""
        return await self._place.aside(work, self.disconnected)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it arrives, for who does not keep it: no faster than it is taken. Raises
        ClientGone when it ends early."""
        has_more = True
        while has_more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            has_more = message.get("more_body", False)
            yield message.get("body", b"")

    def _check_media_type(self, others: Collection[bytes]) -> None:
        encoding = self.header(b"content-encoding")
        if encoding not in (None, b"", b"identity"):
            raise RequestError(
                "compressed bodies are not supported: send the JSON as it is",
                code="unsupported_media_type",
                status=415,
            )
        media = (self.header(b"content-type") or b"").partition(b";")[0].strip().lower()
        if media != b"application/json" and media not in others:
            raise RequestError(
                "the Content-Type must be application/json",
                code="unsupported_media_type",
                status=415,
            )

    async def _read_body(self, body: Body) -> None:
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body.add(message.get("body", b""))
            if not message.get("more_body", False):
                return
            if body.size > SMALL_BYTES:
                await self._bodies.turn()

    def through(self, receive: Callable[[Receive], Receive], send: Callable[[Send], Send]) -> None:
        """What it receives and sends passes what these make of its connection."""
        self.outlet = None
        self._receive, self._send = receive(self._receive), send(self._send)

    async def disconnected(self) -> None:
        """Returns when the client is gone (or the response is complete)."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def send_json(self, value: Any, status: int = 200, headers: Headers = ()) -> None:
        await self.send_bytes(_json.encode(value), b"application/json", status, headers)

    async def send_bytes(
        self, body: bytes, media_type: bytes, status: int = 200, headers: Headers = ()
    ) -> None:
        length = (b"content-length", str(len(body)).encode())
        self._n_bytes += len(body)
        await self._start(status, [(b"content-type", media_type), length, *headers])
        await self._send({"type": "http.response.body", "body": body})

    async def send_unchanged(self, headers: Headers) -> None:
        """What the client has is as it would be sent."""
        await self._start(304, list(headers))
        await self._send({"type": "http.response.body", "body": b""})

    async def send_parts(self, parts: Parts, media_type: bytes = b"application/json") -> None:
        """A document in ``parts``, which are let go as they are sent. It waits while the client
        reads slowly."""
        size = sum(map(len, parts))
        if size <= WRITE_BYTES:
            return await self.send_bytes(b"".join(parts), media_type)
        length = (b"content-length", str(size).encode())
        await self._start(200, [(b"content-type", media_type), length])
        await self._write(emptied(parts))
        await self.end_events()

    async def start_bytes(self, size: int, headers: Headers = ()) -> None:
        """Bytes that mean nothing to a browser; parts of them follow."""
        length = (b"content-length", str(size).encode())
        kind = (b"content-type", b"application/octet-stream")
        await self._start(200, [kind, length, *headers])

    async def start_json(self) -> None:
        """A JSON document whose parts follow."""
        await self._start(200, [(b"content-type", b"application/json")])

    async def start_events(self, headers: Headers, failure: Failure) -> None:
        """``failure`` words what ends the stream when it cannot go on."""
        self.failure = failure
        await self._start(200, list(headers))

    async def send_stream(self, news: AsyncGenerator[list[Parts], None], grammar: Grammar) -> None:
        """Events in batches. It begins with the first; one without any is silence."""
        async with aclosing(news) as batches:
            async for batch in batches:
                if not self.started:
                    await self.start_events(grammar.headers, grammar.failure)
                if batch:
                    await self._send_batch(flat(batch))
                elif grammar.silence:
                    await self.send_events(grammar.silence)
        if not self.started:  # all of it was told before
            await self.start_events(grammar.headers, grammar.failure)
        await self.end_events()

    async def _send_batch(self, parts: Parts) -> None:
        """One write for all events of a step, unless they are large."""
        if sum(map(len, parts)) <= WRITE_BYTES:
            return await self.send_events(b"".join(parts))
        await self._write(parts)

    async def _write(self, parts: Iterable[Part]) -> None:
        """Others have a turn between two pieces."""
        for i, data in enumerate(writes(parts)):
            if i:
                await asyncio.sleep(0)
            await self.send_events(data)

    async def send_events(self, data: bytes) -> None:
        """Waits while the client reads slowly."""
        self._n_bytes += len(data)
        self.backpressure.begin()
        try:
            await self._send({"type": "http.response.body", "body": data, "more_body": True})
        finally:
            self.backpressure.end()

    async def end_events(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started, self.status = True, status
        every = [*headers, *self.headers, (HEADER, self.id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": every})


def _beginning(parts: Iterable[bytes], n: int) -> str:
    """Of a body in ``parts``: its first ``n`` bytes."""
    found = b""
    for part in parts:
        found += part[: n - len(found)]
        if len(found) == n:
            break
    return found.decode(errors="replace")


async def take(lane: asyncio.Semaphore | asyncio.Lock, disconnected: Disconnected) -> None:
    """A place in ``lane``. Raises ClientGone when nobody waits for the answer any more:
    ``disconnected`` returns then."""
    if not lane.locked():
        await lane.acquire()
        return
    await while_wanted(lane.acquire(), disconnected, lambda _: lane.release())


class LanePlace:
    """In the lane of a body of ``n_bytes``; one that is parsed on the event loop needs none."""

    def __init__(self, bodies: BodyBudget, n_bytes: int) -> None:
        is_large = n_bytes > SMALL_BYTES
        self._lane = bodies.lanes[is_large] if n_bytes > INLINE_BYTES else None
        self._bodies = bodies
        self._n_bytes = n_bytes
        self._is_taken = False

    async def take(self, disconnected: Disconnected) -> None:
        """Raises ClientGone."""
        if self._lane is not None:
            await take(self._lane, disconnected)
            self._is_taken = True

    def leave(self) -> None:
        """Also where it is not taken."""
        if self._lane is not None and self._is_taken:
            self._is_taken = False
            self._lane.release()

    async def aside(self, work: Work[Value], disconnected: Disconnected) -> Value:
        """What ``work`` returns, which waits for something: others are read meanwhile, and what was
        read of this body counts as one that arrives. Raises ClientGone, BodiesFull (503)."""
        self.leave()
        with self._bodies.body() as held:
            held.hold(self._n_bytes)
            found = await while_wanted(work(), disconnected)
            await self.take(disconnected)
        return found


async def while_wanted(
    work: Coroutine[Any, Any, Value],
    disconnected: Disconnected,
    undo: Callable[[Value], None] = lambda value: None,
) -> Value:
    """What ``work`` returns. It is cut short when nobody waits for the answer any more, which
    ``disconnected`` returns at; ``undo`` is given what it returned too late. Raises ClientGone."""
    working, gone = asyncio.create_task(work), asyncio.create_task(disconnected())
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        if gone.done():
            raise ClientGone
        return working.result()
    except BaseException:
        if not (working.cancel() or working.cancelled() or working.exception()):
            undo(working.result())
        raise
    finally:
        gone.cancel()
