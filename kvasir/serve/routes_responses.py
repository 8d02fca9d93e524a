"""/v1/responses/ID: what is stored of a response."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.continued import read_log
from kvasir.serve.deferred import followed
from kvasir.serve.dialects.items import shown_items
from kvasir.serve.dialects.response_answer import ResponsesGrammar
from kvasir.serve.exchange import Exchange
from kvasir.serve.lifecycle import Unavailable
from kvasir.serve.pages import included, page_of, read_include, spelled_page
from kvasir.serve.parts import Parts
from kvasir.serve.query import page_in, parsed, read_query, read_start, single
from kvasir.serve.resolved import Envelope
from kvasir.serve.run import AnswerRun, after
from kvasir.serve.service import Service
from kvasir.serve.state import parts
from kvasir.serve.state.conversations import read_item
from kvasir.serve.state.entries import Page
from kvasir.serve.state.kept import decode
from kvasir.serve.state.responses import EVENTS, KEPT, RESPONSE, ResponseRecord, standing

DEFAULT_PAGE, MAX_PAGE = 20, 100


async def get_response(service: Service, exchange: Exchange) -> None:
    first = read_start(read_query(exchange, ("stream", "starting_after")))
    if first is not None:
        return await _tell(service, exchange, first)
    responses, response_id = service.state.responses, _id(exchange)
    head, data = await responses.part(response_id, service.owner(exchange), RESPONSE)
    telling = responses.live.get(response_id)
    if head.is_done or telling is None or not telling.is_running:
        return await exchange.send_parts(data)
    shown = await standing(data, "in_progress")
    await exchange.send_parts([*parts.cut(shown)])


async def delete_response(service: Service, exchange: Exchange) -> None:
    response_id = _id(exchange)
    await service.state.responses.delete(response_id, service.owner(exchange))
    await exchange.send_json({"id": response_id, "object": "response", "deleted": True})


async def post_response_cancel(service: Service, exchange: Exchange) -> None:
    response_id, owner = _id(exchange), service.owner(exchange)
    await exchange.send_parts(await service.state.responses.cancel(response_id, owner))


async def get_input_items(service: Service, exchange: Exchange) -> None:
    """Of its conversation as it was, and its own."""
    several = parsed(exchange)
    wanted = read_include(several)
    query = single(several, ("after", "limit", "order"))
    asked = page_in(query, default=DEFAULT_PAGE, most=MAX_PAGE)
    response_id = _id(exchange)
    record = await service.state.responses.get(response_id, service.owner(exchange))
    page = await asyncio.to_thread(_input_page, record, response_id, wanted, asked)
    await exchange.send_parts(page)


def _input_page(
    record: ResponseRecord, response_id: str, wanted: Collection[str], asked: Page
) -> Parts:
    before = [read_item(item) for item in record.items_before]
    own = shown_items(record.messages[record.n_before :], response_id.removeprefix("resp_"))
    page = page_of([*before, *own], asked)
    return spelled_page({**page, "data": [included(item, wanted) for item in page["data"]]})


def _id(exchange: Exchange) -> str:
    return str(exchange.path_params["response_id"])


async def _tell(service: Service, exchange: Exchange, first: int) -> None:
    """The events from ``first`` on, which are those of any other time."""
    responses, response_id, owner = service.state.responses, _id(exchange), service.owner(exchange)
    head, data = await responses.part(response_id, owner, KEPT)
    if not head.in_background:
        raise RequestError(
            "only a response of background: true can be streamed again: leave out stream",
            param="stream",
            code="not_in_background",
        )
    kept = decode(b"".join(data))
    telling = responses.live.get(kept.envelope.id)
    model = service.check_model(kept.resolved.model)
    text, info = await model.open()
    if telling is not None and not head.is_done:
        grammar = ResponsesGrammar(kept.resolved, kept.envelope, text.tokenizer)
        return await exchange.send_stream(followed(telling, grammar, first), grammar)
    if not head.is_done:
        raise Unavailable("the server does not go on with this response yet: try again")
    _, events = await responses.part(response_id, owner, EVENTS)
    _, whole = await responses.part(response_id, owner, RESPONSE)
    shown = msgspec.json.decode(b"".join(whole), type=_ResponseEnd)
    if not events:
        raise RequestError(
            f"the response is {shown.status}: leave out stream",
            param="stream",
            code="response_ended",
            status=409,
        )
    kept.check(info)
    envelope = Envelope(kept.envelope.id, kept.envelope.created, shown.completed_at)
    run = AnswerRun(
        kept.resolved,
        ResponsesGrammar(kept.resolved, envelope, text.tokenizer),
        model,
        text.tokenizer,
        exchange,
        log=await model.client.slices.run(read_log(events)),
    )
    await exchange.send_stream(after(run.batches(), first - 1), run.grammar)


class _ResponseEnd(msgspec.Struct):
    """What is read of a response; of the rest nothing is."""

    status: str
    completed_at: int | None = None
