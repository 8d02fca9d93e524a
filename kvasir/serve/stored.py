"""Requests of /v1/responses and the store: what they go on from, and what is kept of them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import structs
from msgspec.structs import replace

from kvasir.serve.asked import Asked
from kvasir.serve.deferred import followed
from kvasir.serve.dialects.items import answered
from kvasir.serve.dialects.response_answer import ResponsesGrammar, response_in
from kvasir.serve.exchange import Exchange
from kvasir.serve.jobs import Server
from kvasir.serve.parts import Parts
from kvasir.serve.resolved import Envelope, Resolved
from kvasir.serve.service import Service
from kvasir.serve.state.conversations import read_item
from kvasir.serve.state.kept import Kept, later
from kvasir.serve.state.responses import ResponseRecord, Responses
from kvasir.tokenizer.messages import ChatMessage


class SaidBefore(msgspec.Struct, frozen=True):
    """What the next answer would go on with, but for the answer."""

    messages: tuple[ChatMessage, ...] = ()
    """Without instructions."""
    n_before: int = 0
    """Those of the answers before."""
    conversation: str | None = None
    """What it belongs to."""
    items: tuple[msgspec.Raw, ...] = ()
    """Of the conversation, before it."""


NOTHING_SAID = SaidBefore()


async def continued(service: Service, owner: bytes, asked: Asked) -> tuple[Asked, SaidBefore]:
    """``asked`` with all that was said before. Raises Gone (404), RequestError (400)."""
    keep = asked.keep
    if keep is None:
        return asked, NOTHING_SAID
    before: tuple[ChatMessage, ...] = ()
    raw: tuple[msgspec.Raw, ...] = ()
    if keep.previous is not None:
        record = await service.state.responses.get(keep.previous, owner, "previous_response_id")
        before = await record.said()
    if keep.conversation is not None:
        conversations = service.state.conversations
        items = await conversations.items(keep.conversation, owner, "conversation")
        before, raw = await asyncio.to_thread(_begun, items)
    first, own = asked.messages[: keep.n_instructions], asked.messages[keep.n_instructions :]
    story = SaidBefore((*before, *own), len(before), keep.conversation, raw)
    return replace(asked, messages=(*first, *before, *own)), story


def _begun(items: Sequence[bytes]) -> tuple[tuple[ChatMessage, ...], tuple[msgspec.Raw, ...]]:
    """What the items of a conversation say, and their JSON."""
    said = answered(list(map(read_item, items)), "conversation") if items else ()
    return said, tuple(map(msgspec.Raw, items))


class Storing(msgspec.Struct, frozen=True):
    """Stores an answer before its end is told."""

    responses: Responses
    owner: bytes
    model: str
    envelope: Envelope
    story: SaidBefore
    is_stored: bool = True
    """Else it is only added to its conversation."""

    async def whole(self, parts: Parts) -> None:
        """Raises CapacityError (429), StorageFull (507)."""
        await self._add(b"".join(parts))

    async def events(self, events: Sequence[Parts]) -> None:
        """The same, where one of them is the end."""
        response = response_in(events)
        if response is not None:
            await self._add(response)

    async def _add(self, response: bytes) -> None:
        record = record_of(response, self.story)
        if not self.is_stored:
            return await self.responses.tell(self.owner, record)
        await self.responses.add(self.envelope.id, self.owner, self.model, record)


def record_of(response: bytes, story: SaidBefore) -> ResponseRecord:
    return ResponseRecord(
        response=msgspec.Raw(response),
        messages=story.messages,
        n_before=story.n_before,
        conversation=story.conversation,
        items_before=story.items,
    )


async def defer(
    service: Service,
    exchange: Exchange,
    server: Server,
    resolved: Resolved,
    envelope: Envelope,
    story: SaidBefore,
) -> None:
    """Begins an answer that nobody waits for, and says so, or what is told of it. Raises
    CapacityError (429), StorageFull (507)."""
    grammar = ResponsesGrammar(resolved, envelope, server.text.tokenizer)
    priority = resolved.job.standing.priority_class
    queued = grammar.waiting("queued")
    kept = Kept(later(resolved, priority), envelope, server.info.key_root)
    record = structs.replace(record_of(queued, story), is_done=False, kept=kept.encode())
    responses = service.state.responses
    await responses.add(envelope.id, service.owner(exchange), resolved.model, record)
    if not resolved.stream:
        return await exchange.send_bytes(queued, grammar.media)
    telling = responses.live[envelope.id]
    await exchange.send_stream(followed(telling, grammar, 0), grammar)
