"""Ollama's routes that change the models of this machine: for the operator alone.

A pull runs in a process of its own, the one that the command line runs: the server's threads and
its event loop have streams to look after. Who goes away ends it; what came so far stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from kvasir.core.errors import KvasirError, ModelError, RequestError
from kvasir.library.create import merged
from kvasir.library.modelfile import ROLES, read_parameters
from kvasir.library.names import hub_name, own_name
from kvasir.library.shelf import Shelf
from kvasir.library.stored import Defaults, StoredModel
from kvasir.serve import ndjson
from kvasir.serve.dialects.ollama import error_of
from kvasir.serve.exchange import Exchange
from kvasir.serve.interpreter import module_command
from kvasir.serve.protocol.parse import Allowed, parse_request
from kvasir.serve.resolved import Json
from kvasir.serve.service import Service

MAX_LINE = 1 << 16
ERROR_BYTES = 4096
Asked = TypeVar("Asked", bound=msgspec.Struct)


class OllamaPull(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    name: str | None = None
    """Its older name."""
    stream: bool = True


class OllamaDelete(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    name: str | None = None


class OllamaCopy(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    destination: str


class OllamaCreate(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    name: str | None = None
    base: str | None = msgspec.field(default=None, name="from")
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    system: str = ""
    messages: list[dict[str, str]] = msgspec.field(default_factory=list)
    license: str | list[str] = ""
    stream: bool = True


UNSUPPORTED: dict[type, Allowed] = {
    OllamaPull: {"insecure": (False,), "username": ("",), "password": ("",)},
    OllamaDelete: {},
    OllamaCopy: {},
    OllamaCreate: {
        "adapters": ({},),
        "files": ({},),
        "quantize": ("",),
        "template": ("",),
        "modelfile": ("",),
    },
}
"""By request."""


async def post_pull(service: Service, exchange: Exchange) -> None:
    """Raises RequestError (400), and ModelError before anything was told."""
    async with _reading(service, exchange, OllamaPull) as request:
        name = _named(request.model, request.name)
        streams = request.stream
    if hub_name(name) is None:
        raise RequestError(
            f"{name[:200]!r} is no name of the Hugging Face hub: use ORG/REPO or ORG/REPO:QUANT",
            param="model",
        )
    command = (*module_command("kvasir"), "pull", "--json", "--", name)
    async with _running(command) as process:
        watch = asyncio.create_task(exchange.disconnected())
        try:
            await _relay(exchange, process, watch, streams=streams)
        finally:
            watch.cancel()


async def post_create(service: Service, exchange: Exchange) -> None:
    """A model of the library under another name, with other defaults; what was called so before is
    forgotten. Raises RequestError (400; 404 where there is no such model; 409 for the last name of
    the one that is served, if it is to have other files) and ModelError."""
    async with _reading(service, exchange, OllamaCreate) as request:
        made = await asyncio.to_thread(_made, request)
        streams = request.stream
    await asyncio.to_thread(_replace, made, service.current.model)
    await _succeed(exchange, streams=streams)


async def post_copy(service: Service, exchange: Exchange) -> None:
    """Raises ModelError where there is no such model, or there is one already."""
    async with _reading(service, exchange, OllamaCopy) as request:
        await asyncio.to_thread(_quietly, Shelf().copy, request.source, request.destination)
    await exchange.send_bytes(b"", b"application/json")


async def delete_model(service: Service, exchange: Exchange) -> None:
    """Raises RequestError: 404 where there is no such model, 409 for the last name of the one that
    is served, which an engine that is started again opens again."""
    async with _reading(service, exchange, OllamaDelete) as request:
        name = _named(request.model, request.name)
        await asyncio.to_thread(_quietly, _remove, name, service.current.model)
    await exchange.send_bytes(b"", b"application/json")


def _remove(name: str, served: str | None) -> None:
    shelf = Shelf()
    gone = shelf.meant(name)
    _not_served(shelf, gone, served)
    for model in gone:
        shelf.remove(model.name)


def _not_served(shelf: Shelf, gone: Sequence[StoredModel], served: str | None) -> None:
    """Raises RequestError (409) where nothing but ``gone`` has the files of what is served."""
    names = {model.name for model in gone}
    kept = {other.folder for other in shelf.models() if other.name not in names}
    for model in gone:
        if model.folder not in kept and served is not None and shelf.path(model) == Path(served):
            raise RequestError(
                f"{model.name} is served: end the server first, or kvasir cp {model.name} OTHER",
                param="model",
                code="model_in_use",
                status=409,
            )


def _replace(made: StoredModel, served: str | None) -> None:
    shelf = Shelf()
    before = shelf.called(made.name)
    if before is not None and before.folder != made.folder:
        _not_served(shelf, (before,), served)
    shelf.replace(made)


def _made(request: OllamaCreate) -> StoredModel:
    name = own_name(_named(request.model, request.name))
    if not request.base:
        raise RequestError("from is missing: name a model of the library", param="from")
    base: StoredModel = _quietly(Shelf().known, request.base)
    said, length = _quietly(read_parameters, request.parameters)
    messages = tuple((x.get("role", "user"), x.get("content", "")) for x in request.messages)
    if any(role not in ROLES for role, _ in messages):
        raise RequestError(f"messages: a role is one of {', '.join(ROLES)}", param="messages")
    texts = request.license
    over = Defaults(said, request.system, messages, length)
    return msgspec.structs.replace(
        base,
        name=name,
        defaults=merged(base.defaults, over),
        license=(texts if isinstance(texts, str) else "\n".join(texts)) or base.license,
    )


def _quietly(call: Any, *arguments: Any) -> Any:
    """What is not there is a client's mistake: 404. Raises RequestError."""
    try:
        return call(*arguments)
    except ModelError as error:
        status = 404 if error.code == "model_not_found" else 400
        raise RequestError(error.message, code=error.code, status=status) from None


def _named(model: str | None, name: str | None) -> str:
    found = model or name
    if not found:
        raise RequestError("the model is missing", param="model")
    return found


@asynccontextmanager
async def _reading(service: Service, exchange: Exchange, kind: type[Asked]) -> AsyncIterator[Asked]:
    def read(body: Json) -> Asked:
        return parse_request(kind, body, UNSUPPORTED[kind], strict=True)[0]

    async with exchange.reading(read) as request:
        yield request


@asynccontextmanager
async def _running(command: tuple[str, ...]) -> AsyncIterator[asyncio.subprocess.Process]:
    """It ends with the block."""
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *command, stdin=null, stdout=pipe, stderr=pipe, limit=MAX_LINE
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _relay(
    exchange: Exchange,
    process: asyncio.subprocess.Process,
    watch: asyncio.Task[None],
    *,
    streams: bool,
) -> None:
    """Its lines are the answer, or the last one is."""
    assert process.stdout is not None and process.stderr is not None
    errors = asyncio.create_task(process.stderr.read(ERROR_BYTES))
    last = b""
    while True:
        line = asyncio.create_task(process.stdout.readline())
        await asyncio.wait((line, watch), return_when=asyncio.FIRST_COMPLETED)
        if watch.done():
            line.cancel()
            errors.cancel()
            return
        last = line.result() or last
        if not line.result():
            break
        if streams:
            if not exchange.started:
                await exchange.start_events(ndjson.HEADERS, lambda e: ndjson.line(error_of(e)))
            await exchange.send_events(line.result())
    status, said = await process.wait(), (await errors).decode("utf-8", "replace").strip()
    if status:
        why = said.splitlines()[-1].removeprefix("kvasir: ") if said else f"status {status}"
        raise KvasirError(why, code="pull_failed")
    if streams:
        await exchange.end_events()
    else:
        await exchange.send_bytes(last.strip(), b"application/json")


async def _succeed(exchange: Exchange, *, streams: bool) -> None:
    if not streams:
        await exchange.send_json({"status": "success"})
        return
    await exchange.start_events(ndjson.HEADERS, lambda e: ndjson.line(error_of(e)))
    await exchange.send_events(ndjson.line({"status": "success"}))
    await exchange.end_events()
