"""One line of a batch: from its bytes to the request that is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Protocol, TypeVar

from msgspec import structs

from kvasir.core.errors import RequestError
from kvasir.core.request import PriorityClass
from kvasir.serve.addressed import fetch_images
from kvasir.serve.answer import Dialect
from kvasir.serve.asked import Asked
from kvasir.serve.dialects.table import GENERATES
from kvasir.serve.exchange import INLINE_BYTES, LanePlace
from kvasir.serve.images import ImagesUnread
from kvasir.serve.jobs import Server, resolve_request
from kvasir.serve.jsonbody import parse_object
from kvasir.serve.resolved import Ids, Json
from kvasir.serve.routes_generate import server_of
from kvasir.serve.service import Service
from kvasir.serve.state.batches import LineError
from kvasir.serve.state.kept import Kept, later
from kvasir.serve.state.lines import BatchLine
from kvasir.validation.warn import escaped

ENDPOINTS = tuple(
    path
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings")
    if path in GENERATES
)
CLASS: PriorityClass = "batch"
MAX_CUSTOM_ID = 512
FIELDS = ("custom_id", "method", "url", "body")
FIRST_PREFIX, LAST_PREFIX = 16, 2**17
"""Tokens of the shortest and the longest beginning by which lines are ordered."""


Value = TypeVar("Value")


class Where(Protocol):
    """Does work on the event loop, or beside it."""

    def __call__(self, work: Callable[[], Value], /) -> Awaitable[Value]: ...


class InvalidLine(Exception):
    def __init__(self, error: LineError) -> None:
        super().__init__(error.message)
        self.error = error


class LineReader:
    """Of one batch. Lines are resolved as requests to its endpoint are, in the class ``batch``."""

    def __init__(self, service: Service, endpoint: str, owner: bytes) -> None:
        self._service = service
        self._caller = service.caller_of(owner)
        self._endpoint = endpoint
        self._dialect: Dialect = GENERATES[endpoint]
        self._servers: dict[str, Server] = {}
        self._custom_ids: set[str] = set()
        self.models: set[str] = set()

    async def read(self, number: int, data: bytes) -> BatchLine:
        """A large line is read in a thread, in turn with bodies of its size. Raises InvalidLine,
        Unavailable, EngineDown."""
        where = _here if len(data) <= INLINE_BYTES else asyncio.to_thread
        place = LanePlace(self._service.bodies, len(data))
        await place.take(_never)
        try:
            return await self._read(number, data, where, place)
        finally:
            place.leave()

    async def _read(self, number: int, data: bytes, where: Where, place: LanePlace) -> BatchLine:
        try:
            custom_id, asked = await where(lambda: self._asked(number, data))
            kept = await self._kept(in_batch(unstored(asked)), place)
        except ImagesUnread as error:  # again and again, of this line
            raise _invalid(error.code, error.message, "body", number) from None
        except RequestError as error:
            param = error.param and f"body.{error.param}"
            raise InvalidLine(LineError(error.code, error.message, param, number)) from None
        return await where(lambda: _line(number, custom_id, kept))

    def _asked(self, number: int, data: bytes) -> tuple[str, Asked]:
        """Raises RequestError, InvalidLine."""
        custom_id, body = self._parts(number, data)
        asked = self._dialect.read(body, strict=self._service.options.strict)
        _check_batch(asked, body)
        return custom_id, asked

    def _parts(self, number: int, data: bytes) -> tuple[str, Json]:
        limit = self._service.options.max_body_bytes
        if len(data) > limit:
            raise _invalid("line_too_long", f"the line exceeds {limit} bytes", None, number)
        try:
            line = parse_object(data)
        except RequestError as error:
            raise _invalid("invalid_json_line", error.message, None, number) from None
        unknown = next((key for key in line if key not in FIELDS), None)
        if unknown is not None:
            raise _invalid("unknown_field", f"unknown field '{escaped(unknown)}'", None, number)
        custom_id = line.get("custom_id")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID:
            message = f"custom_id must be a text of 1 to {MAX_CUSTOM_ID} characters"
            raise _invalid("invalid_custom_id", message, "custom_id", number)
        if custom_id in self._custom_ids:
            message = f"the custom_id '{escaped(custom_id)}' occurs twice"
            raise _invalid("duplicate_custom_id", message, "custom_id", number)
        self._custom_ids.add(custom_id)
        if line.get("method") != "POST":
            raise _invalid("invalid_method", "method must be POST", "method", number)
        if line.get("url") != self._endpoint:
            message = f"url must be the endpoint of the batch, {self._endpoint}"
            raise _invalid("invalid_url", message, "url", number)
        body = line.get("body")
        if not isinstance(body, dict):
            raise _invalid("invalid_body", "body must be a JSON object", "body", number)
        return custom_id, body

    async def _kept(self, asked: Asked, place: LanePlace) -> Kept:
        find = self._service.check_model if self._dialect.needs_model else self._service.model_of
        model = find(asked.model)
        server = self._servers.get(model.name)
        if server is None:
            server = self._servers[model.name] = await server_of(self._service, model, self._caller)
        nobody_waits = 0.0
        with self._service.bodies.body() as body:
            asked = await fetch_images(asked, server, body, lambda work: place.aside(work, _never))
            resolved = await resolve_request(asked, server, model.name, nobody_waits)
        self.models.add(model.name)
        return Kept(later(resolved, CLASS), self._dialect.new_envelope(), server.info.key_root)


async def _never() -> None:
    """Who waits for a batch does not leave."""
    await asyncio.Event().wait()


async def _here(work: Callable[[], Value]) -> Value:
    return work()


def _line(number: int, custom_id: str, kept: Kept) -> BatchLine:
    return BatchLine(number, custom_id, place_of(kept.resolved.job.prompts[0]), kept.encode())


def unstored(asked: Asked) -> Asked:
    """The answer of a line is in the output of its batch alone."""
    show = {key: value for key, value in asked.show.items() if key != "store"}
    return asked if asked.keep is None else structs.replace(asked, keep=None, show=show)


def in_batch(asked: Asked) -> Asked:
    """Of the class of batches, whose limits are those of its key."""
    return structs.replace(asked, standing=structs.replace(asked.standing, priority_class=CLASS))


def _check_batch(asked: Asked, body: Json) -> None:
    """Raises RequestError (400) for what has no meaning in a batch."""
    for name in (
        ("store", "background", "previous_response_id", "conversation") if asked.keep else ()
    ):
        if body.get(name):
            raise RequestError(f"{name} has no meaning in a batch: leave it out", param=name)
    for name in ("ttft_ms", "deadline_ms"):
        if getattr(asked.params, name) is not None:
            raise RequestError(f"{name} has no meaning in a batch: leave it out", param=name)
    if asked.session:
        raise RequestError("session_id has no meaning in a batch: leave it out", param="session_id")
    if asked.stream:
        raise RequestError("a batch does not stream: leave stream out", param="stream")
    if asked.standing.priority_class == "realtime":
        raise RequestError("lines of a batch have the class batch", param="priority_class")


def place_of(prompt: Ids) -> bytes:
    """Orders prompts so that those with the longest common beginnings are neighbours: 4 bytes for
    each of their beginnings of 16, 32, 64 … tokens."""
    digests, size = [], FIRST_PREFIX
    while size <= min(len(prompt), LAST_PREFIX):
        data = b"".join(token.to_bytes(4, "little") for token in prompt[:size])
        digests.append(blake2b(data, digest_size=4).digest())
        size *= 2
    return b"".join(digests)


def _invalid(code: str, message: str, param: str | None, number: int) -> InvalidLine:
    return InvalidLine(LineError(code, message, param, number))
