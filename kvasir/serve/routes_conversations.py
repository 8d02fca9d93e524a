"""/v1/conversations."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable
from typing import Any

import msgspec

from kvasir.config.serving import image_limit
from kvasir.core.errors import RequestError
from kvasir.serve.dialects.items import read_items, shown_items
from kvasir.serve.exchange import Exchange
from kvasir.serve.long import beside
from kvasir.serve.pages import checked_include, included, paged, read_include, spelled_page
from kvasir.serve.parts import Parts, spelled
from kvasir.serve.protocol.notes import check_metadata
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.query import page_in, parsed, read_query, single
from kvasir.serve.resolved import Json
from kvasir.serve.routes_chats import DEFAULT_PAGE, MAX_PAGE, read_metadata
from kvasir.serve.seen import check_count, images_of
from kvasir.serve.service import Service
from kvasir.serve.state.conversations import read_item
from kvasir.tokenizer.messages import ChatMessage

Messages = tuple[ChatMessage, ...]

MAX_NEW = 20
"""Items that are added at a time."""


class ConversationRequest(msgspec.Struct, frozen=True):
    items: list[dict[str, Any]] | None = None
    metadata: dict[str, str] | None = None


class ItemsRequest(msgspec.Struct, frozen=True):
    items: list[dict[str, Any]]
    include: list[str] = []
    """As in the query."""


async def post_conversation(service: Service, exchange: Exchange) -> None:
    """Begins a conversation."""

    def read(body: Json) -> tuple[Messages, dict[str, str]]:
        request, _ = parse_request(ConversationRequest, body, {}, strict=True)
        metadata = request.metadata or {}
        check_metadata(metadata)
        return _messages(service, request.items or []), metadata

    async with exchange.reading(read) as (messages, metadata):
        owner, items = service.owner(exchange), await _items(service, exchange, messages)
    made = await service.state.conversations.create(owner, items, metadata)
    await exchange.send_json(made)


async def get_conversation(service: Service, exchange: Exchange) -> None:
    """A conversation without its items."""
    name, owner = _id(exchange), service.owner(exchange)
    await exchange.send_json(await service.state.conversations.get(name, owner))


async def update_conversation(service: Service, exchange: Exchange) -> None:
    """Gives a conversation other metadata."""
    async with exchange.reading(read_metadata) as metadata:
        name, owner = _id(exchange), service.owner(exchange)
    await exchange.send_json(await service.state.conversations.update(name, owner, metadata))


async def delete_conversation(service: Service, exchange: Exchange) -> None:
    """Forgets a conversation with its items."""
    name = _id(exchange)
    await service.state.conversations.delete(name, service.owner(exchange))
    deleted = {"id": name, "object": "conversation.deleted", "deleted": True}
    await exchange.send_json(deleted)


async def post_items(service: Service, exchange: Exchange) -> None:
    """Adds items to a conversation."""
    wanted = _include(exchange)

    def read(body: Json) -> tuple[Messages, frozenset[str]]:
        request, _ = parse_request(ItemsRequest, body, {}, strict=True)
        if not request.items:
            raise RequestError("items is empty: send at least one", param="items")
        return _messages(service, request.items), checked_include(request.include)

    async with exchange.reading(read) as (messages, more):
        name, owner = _id(exchange), service.owner(exchange)
        items = await _items(service, exchange, messages)
    await service.state.conversations.append(name, owner, items)
    page = await asyncio.to_thread(_page, items, wanted | more, False)
    await exchange.send_parts(page)


async def get_items(service: Service, exchange: Exchange) -> None:
    """The items of a conversation, the newest first."""
    several = parsed(exchange)
    wanted = read_include(several)
    query = single(several, ("after", "limit", "order"))
    asked = page_in(query, default=DEFAULT_PAGE, most=MAX_PAGE)
    name, owner = _id(exchange), service.owner(exchange)
    found, has_more = await service.state.conversations.page(name, owner, asked)
    page = await asyncio.to_thread(lambda: _page(map(read_item, found), wanted, has_more))
    await exchange.send_parts(page)


async def get_item(service: Service, exchange: Exchange) -> None:
    """One item of a conversation."""
    wanted, name, owner = _include(exchange), _id(exchange), service.owner(exchange)
    item = await service.state.conversations.item(name, owner, _item_id(exchange))
    shown = await beside(len(item), lambda: spelled(included(read_item(item), wanted)))
    await exchange.send_parts(shown)


async def delete_item(service: Service, exchange: Exchange) -> None:
    """Takes an item out of a conversation."""
    read_query(exchange, ())
    name, owner = _id(exchange), service.owner(exchange)
    found = await service.state.conversations.delete_item(name, owner, _item_id(exchange))
    await exchange.send_json(found)


def _page(items: Iterable[Json], wanted: frozenset[str], has_more: bool) -> Parts:
    return spelled_page(paged([included(item, wanted) for item in items], has_more))


def _messages(service: Service, given: list[dict[str, Any]]) -> Messages:
    """Raises RequestError (400)."""
    if len(given) > MAX_NEW:
        raise RequestError(
            f"{len(given)} items are too many at a time: send {MAX_NEW} at most", param="items"
        )
    if not given:
        return ()
    messages, notes = read_items(given, None, "items")
    if notes:
        raise RequestError(
            notes[0].replace("was ignored", "is not known"),
            param="items",
            code="unknown_parameter",
        )
    check_count(images_of(messages), image_limit(service.options.limit_mm_per_prompt))
    return messages


async def _items(service: Service, exchange: Exchange, messages: Messages) -> list[Json]:
    """With ids of ours, and images in place of their addresses. Raises RequestError (400),
    CapacityError (429), BodiesFull (503), ClientGone."""
    if any(image.address for image in images_of(messages)):
        messages = await _fetched(service, exchange, messages)
    return await asyncio.to_thread(shown_items, messages, secrets.token_hex(16))


async def _fetched(service: Service, exchange: Exchange, messages: Messages) -> Messages:
    if not await service.sees():
        raise RequestError(
            "no model here reads images: leave them out, or serve one that does",
            param=images_of(messages)[0].where,
            code="unsupported_parameter",
        )
    owner, fetcher = exchange.caller.key_id, service.fetcher
    with service.bodies.body() as body:
        return await exchange.aside(lambda: fetcher.fetched(messages, body, owner))


def _include(exchange: Exchange) -> frozenset[str]:
    several = parsed(exchange)
    wanted = read_include(several)
    single(several, ())
    return wanted


def _id(exchange: Exchange) -> str:
    return str(exchange.path_params["conversation_id"])


def _item_id(exchange: Exchange) -> str:
    return str(exchange.path_params["item_id"])
