"""Idempotency-Key: a request that is sent again is answered with what it was answered before.

The header is that of draft-ietf-httpapi-idempotency-key-header.
"""

from __future__ import annotations

import asyncio
import logging
import re
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from hashlib import blake2b, sha256

import msgspec
from starlette.types import Message, Receive, Send

from kvasir.core.errors import KvasirError, RequestError
from kvasir.serve.exchange import Disconnected, Exchange, while_wanted
from kvasir.serve.sameness import sameness
from kvasir.serve.state import entries
from kvasir.serve.state.entries import Entry
from kvasir.serve.state.store import Store

logger = logging.getLogger("kvasir.state")

HEADER = b"idempotency-key"
MAX_KEY = 255
"""Characters."""
KEPT_SECONDS = 24 * 3600
MAX_ANSWER = 4 * 2**20
"""Bytes; of a larger answer only that it was given is kept."""
STORED_ID = re.compile(rb'"id":"((?:resp_|chatcmpl-)[0-9a-f]+)"')
"""The first in an answer, whole or as a stream, is its own."""
REPLAYED = [(b"idempotent-replayed", b"true")]
LOOK_SECONDS = 0.1
"""Between two looks whether another server still answers a key: one that gives its place to this
one, or this one's successor."""


class KeptAnswer(msgspec.Struct, frozen=True):
    """What a request was answered, whole or as a stream."""

    digest: bytes
    """Of the request."""
    status: int
    media: bytes
    body: bytes | None
    """None: it was too large."""


class Repeated(Exception):
    """The request was answered before."""

    def __init__(self, answer: KeptAnswer) -> None:
        super().__init__()
        self.answer = answer


@dataclass(slots=True)
class _Answering:
    """A request with a key, from the end of its body to the end of its answer."""

    digest: bytes
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class Repeats:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._answering: dict[str, _Answering] = {}

    async def run(
        self, exchange: Exchange, owner: bytes, handle: Callable[[], Awaitable[None]]
    ) -> None:
        """``handle`` answers the exchange, unless its key was answered before. Raises RequestError
        (400, 409, 422) and what ``handle`` raises."""
        key = exchange.header(HEADER)
        if key is None or exchange.scope["method"] != "POST":
            return await handle()
        if not 0 < len(key) <= MAX_KEY or not key.isascii():
            raise RequestError(
                f"the Idempotency-Key has 1 to {MAX_KEY} ASCII characters", param="Idempotency-Key"
            )
        recorder = _Recorder(self, exchange, owner, _name(owner, key))
        exchange.through(recorder.receiving, recorder.sending)
        try:
            await handle()
        except Repeated as found:
            await _repeat(exchange, found.answer)
        except BaseException:
            recorder.drop()
            raise
        finally:
            recorder.end()

    async def begin(
        self, name: str, owner: bytes, digest: bytes, disconnected: Disconnected
    ) -> _Answering:
        """When nobody answers the same key, here or in a server that has the same state. Raises
        Repeated, RequestError (409, 422), ClientGone once ``disconnected`` returns."""
        while (other := self._answering.get(name)) is not None:
            _check(other.digest, digest)
            await while_wanted(other.ended.wait(), disconnected)
        mine = self._answering[name] = _Answering(digest)
        try:
            while not await self._claim(name, owner, digest):
                await while_wanted(asyncio.sleep(LOOK_SECONDS), disconnected)
        except BaseException:
            self.end(name, mine)
            raise
        return mine

    def end(self, name: str, mine: _Answering) -> None:
        self._store.folder.give_back(_place(name))
        del self._answering[name]
        mine.ended.set()

    async def _claim(self, name: str, owner: bytes, digest: bytes) -> bool:
        """False while another server answers the same key. Raises Repeated, RequestError (422)."""
        now, folder = self._store.clock(), self._store.folder

        def look(db: sqlite3.Connection) -> Entry | bool:
            """What another server had kept before it gave the key back is seen: it writes nothing
            inside of this transaction."""
            if not folder.claim(_place(name)):
                return False
            try:
                return entries.find(db, "repeat", name, owner, now)
            except entries.Gone:
                return True

        found = await self._store.run(look)
        if isinstance(found, bool):
            return found
        known = msgspec.msgpack.decode(found.value, type=KeptAnswer)
        _check(known.digest, digest)
        raise Repeated(known)

    async def keep(self, name: str, owner: bytes, answer: KeptAnswer, label: str) -> None:
        """As far as there is room: it is on its way, and nothing may stop it. ``label``: the id of
        what is stored of it, with which it goes."""
        value, now = msgspec.msgpack.encode(answer), int(self._store.clock())
        entry = Entry(name, "repeat", owner, label, now, now + KEPT_SECONDS, len(value), value)
        quota = self._store.quota

        def add(db: sqlite3.Connection) -> list[str]:
            db.execute("DELETE FROM entries WHERE id = ?", (name,))
            return entries.add(db, entry, quota)

        try:
            await self._store.run(add)
        except KvasirError as error:
            logger.warning("an answer with an Idempotency-Key is not kept: %s", error.message)


class _Recorder:
    """Between an exchange and its connection: it reads along."""

    def __init__(self, repeats: Repeats, exchange: Exchange, owner: bytes, name: str) -> None:
        self._repeats = repeats
        self._disconnected = exchange.disconnected
        self._owner = owner
        self._name = name
        self._read = sameness(*_target(exchange))
        self._answering: _Answering | None = None
        self._is_read = False
        self._status = 0
        self._media = b""
        self._body = bytearray()
        self._size = 0

    def receiving(self, receive: Receive) -> Receive:
        async def receive_along() -> Message:
            message = await receive()
            if self._is_read or message["type"] != "http.request":
                return message
            self._read.update(message.get("body", b""))
            if not message.get("more_body", False):
                self._is_read = True
                if (digest := self._read.digest()) is not None:
                    self._answering = await self._repeats.begin(
                        self._name, self._owner, digest, self._disconnected
                    )
            return message

        return receive_along

    def sending(self, send: Send) -> Send:
        async def send_along(message: Message) -> None:
            if self._answering is not None:
                await self._note(message, self._answering)
            await send(message)

        return send_along

    async def _note(self, message: Message, answering: _Answering) -> None:
        """Answers that went well are kept, before their last byte is sent."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._media = dict(message["headers"]).get(b"content-type", b"")
            return
        body = message.get("body", b"")
        self._size += len(body)
        if self._size <= MAX_ANSWER:
            self._body += body
        if message.get("more_body", False) or self._status >= 300:
            return
        whole = bytes(self._body) if self._size <= MAX_ANSWER else None
        answer = KeptAnswer(answering.digest, self._status, self._media, whole)
        found = STORED_ID.search(self._body)
        label = found[1].decode() if found else ""
        await self._repeats.keep(self._name, self._owner, answer, label)

    def drop(self) -> None:
        """What is sent from now on is no answer."""
        self._status = 500

    def end(self) -> None:
        if self._answering is not None:
            self._repeats.end(self._name, self._answering)
            self._answering = None


async def _repeat(exchange: Exchange, answer: KeptAnswer) -> None:
    if answer.body is None:
        raise RequestError(
            f"the request was answered, with more than the {MAX_ANSWER} bytes that are kept",
            code="answer_not_kept",
            status=409,
        )
    await exchange.send_bytes(answer.body, answer.media, answer.status, REPLAYED)


def _check(known: bytes, digest: bytes) -> None:
    if known != digest:
        raise RequestError(
            "the Idempotency-Key was used for another request: take a new one",
            param="Idempotency-Key",
            code="idempotency_key_reused",
            status=422,
        )


def _target(exchange: Exchange) -> tuple[bytes, bytes]:
    """Where its body goes, and of which type it is."""
    scope = exchange.scope
    target = b"\0".join((scope["path"].encode(), scope["query_string"]))
    return target, exchange.header(b"content-type") or b""


def _name(owner: bytes, key: bytes) -> str:
    return "repeat-" + blake2b(key, key=sha256(owner).digest(), digest_size=16).hexdigest()


def _place(name: str) -> int:
    """Of a name, in what servers have claimed: 60 bits of it."""
    return int(name[-15:], 16)
