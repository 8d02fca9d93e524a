"""/v1/chat/completions/ID: what is stored of chat completions."""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.serve.chats import grammar_of
from kvasir.serve.continued import read_log
from kvasir.serve.exchange import Exchange
from kvasir.serve.generation import Nobody
from kvasir.serve.lifecycle import Unavailable
from kvasir.serve.pages import paged, spelled_page
from kvasir.serve.parts import HOLE, filled, listed
from kvasir.serve.protocol.notes import check_metadata
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.query import (
    page_in,
    parsed,
    pop_mapping,
    read_query,
    read_start,
    single,
)
from kvasir.serve.resolved import Json
from kvasir.serve.run import AnswerRun, after
from kvasir.serve.service import Service
from kvasir.serve.state.chats import EVENTS, KEPT
from kvasir.serve.state.entries import Page
from kvasir.serve.state.kept import decode
from kvasir.tokenizer.messages import IMAGE_KIND, ChatMessage, History, ImagePart

DEFAULT_PAGE, MAX_PAGE = 20, 100


class MetadataRequest(msgspec.Struct, frozen=True):
    metadata: dict[str, str] | None = None
    """null: none."""


def read_metadata(body: Json) -> dict[str, str]:
    """Raises RequestError (400)."""
    if "metadata" not in body:
        raise RequestError(
            "metadata is missing: send an object, or null for none", param="metadata"
        )
    request, _ = parse_request(MetadataRequest, body, {}, strict=True)
    check_metadata(request.metadata or {})
    return request.metadata or {}


async def get_chats(service: Service, exchange: Exchange) -> None:
    """Stored chat completions, the oldest first."""
    several = parsed(exchange)
    metadata = pop_mapping(several, "metadata")
    query = single(several, ("after", "limit", "order", "model"))
    asked = replace(_page(query), metadata=tuple(metadata.items()), ended=True)
    found, has_more = await service.state.chats.page(service.owner(exchange), asked)
    names = list(found)
    first, last = (names[0], names[-1]) if names else (None, None)
    page = {"object": "list", "data": HOLE, "first_id": first, "last_id": last}
    await exchange.send_parts(filled({**page, "has_more": has_more}, listed(found.values())))


async def get_chat(service: Service, exchange: Exchange) -> None:
    """A stored chat completion, whole or as the stream of its events."""
    first = read_start(read_query(exchange, ("stream", "starting_after")))
    if first is not None:
        return await _tell(service, exchange, first)
    whole = await service.state.chats.whole(_id(exchange), service.owner(exchange))
    await exchange.send_parts(whole)


async def post_chat(service: Service, exchange: Exchange) -> None:
    """Gives a stored chat completion other metadata."""
    async with exchange.reading(read_metadata) as metadata:
        pass
    shown = await service.state.chats.update(_id(exchange), service.owner(exchange), metadata)
    await exchange.send_parts([shown])


async def delete_chat(service: Service, exchange: Exchange) -> None:
    """Forgets a stored chat completion; one that is computed ends."""
    chat_id = _id(exchange)
    await service.state.chats.delete(chat_id, service.owner(exchange))
    deleted = {"id": chat_id, "object": "chat.completion.deleted", "deleted": True}
    await exchange.send_json(deleted)


async def get_chat_messages(service: Service, exchange: Exchange) -> None:
    """The messages that a stored chat completion answered."""
    asked = _page(read_query(exchange, ("after", "limit", "order")))
    chats, chat_id = service.state.chats, _id(exchange)
    found, has_more = await chats.messages(chat_id, service.owner(exchange), asked)
    page = paged([_message(*one) for one in found], has_more)
    await exchange.send_parts(await asyncio.to_thread(spelled_page, page))


def _message(name: str, message: ChatMessage) -> Json:
    plain = replace(message, parts=())
    parts = [_part(part) for part in message.parts] or None
    return {"id": name, **plain.said(History(as_text=True)), "content_parts": parts}


def _part(part: str | ImagePart) -> Json:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    return {"type": IMAGE_KIND, IMAGE_KIND: {"url": part.uri}}


async def _tell(service: Service, exchange: Exchange, first: int) -> None:
    """The events from ``first`` on, which are those of any other time."""
    chats, chat_id, owner = service.state.chats, _id(exchange), service.owner(exchange)
    telling = chats.live.get(chat_id)  # before the record is read, which says whether it has ended
    record, data = await chats.part(chat_id, owner, KEPT)
    kept = decode(b"".join(data))
    model = service.check_model(kept.resolved.model)
    text, info = await model.open()
    grammar = grammar_of(kept, text)
    if kept.resolved.job.length_penalty is not None:
        raise RequestError("a beam search has no stream: leave out stream", param="stream")
    if telling is not None and not record.is_done:
        news = telling.follow(first, kept.resolved.silence)
        return await exchange.send_stream(news, grammar)
    if not record.has_events:
        raise Unavailable("the server does not go on with this chat yet: try again")
    kept.check(info)
    _, events = await chats.part(chat_id, owner, EVENTS)
    log = await model.client.slices.run(read_log(events))
    run = AnswerRun(kept.resolved, grammar, model, text.tokenizer, Nobody(), log=log)
    await exchange.send_stream(after(run.batches(), first - 1), grammar)


def _page(query: dict[str, str]) -> Page:
    label = query.get("model")
    return page_in(query, default=DEFAULT_PAGE, most=MAX_PAGE, label=label, order="asc")


def _id(exchange: Exchange) -> str:
    return str(exchange.path_params["completion_id"])
