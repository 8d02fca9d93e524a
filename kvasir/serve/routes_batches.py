"""/v1/batches."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.batch.line import CLASS, ENDPOINTS
from kvasir.serve.exchange import Exchange
from kvasir.serve.protocol.notes import check_metadata
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.query import page_in, read_query
from kvasir.serve.resolved import Json
from kvasir.serve.routes_files import MAX_SECONDS, MIN_SECONDS
from kvasir.serve.service import Service
from kvasir.serve.state.files import DAY_SECONDS
from kvasir.validation.warn import escaped

DEFAULT_PAGE, MAX_PAGE = 20, 100
MAX_WINDOW = 30 * DAY_SECONDS
UNITS = {"s": 1, "m": 60, "h": 3600, "d": DAY_SECONDS}
_WINDOW = re.compile(r"([1-9][0-9]{0,6})([smhd])")


class ExpiresAfter(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    anchor: str
    seconds: int


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


async def post_batch(service: Service, exchange: Exchange) -> None:
    """Begins a batch, for a key that may ask for what its lines ask for."""
    exchange.caller.check("inference")
    exchange.caller.check_class(CLASS)

    def read(body: Json) -> BatchRequest:
        return parse_request(BatchRequest, body, {}, strict=True)[0]

    async with exchange.reading(read) as request:
        if request.endpoint not in ENDPOINTS:
            raise RequestError(
                f"the endpoint is '{escaped(request.endpoint)}': use one of {', '.join(ENDPOINTS)}",
                param="endpoint",
            )
        window = request.completion_window, seconds_of(request.completion_window)
        check_metadata(request.metadata or {})
        after = _output_seconds(request.output_expires_after)
    state, owner = service.state, service.owner(exchange)
    file = await state.files.get(request.input_file_id, owner, "input_file_id")
    if file.purpose != "batch":
        raise RequestError(
            f"the file is for {file.purpose}: upload it with the purpose batch",
            param="input_file_id",
        )
    batch = await state.batches.create(
        owner,
        file,
        endpoint=request.endpoint,
        window=window,
        output_seconds=after,
        metadata=request.metadata,
    )
    await exchange.send_json(batch)


async def get_batches(service: Service, exchange: Exchange) -> None:
    query = read_query(exchange, ("after", "limit"))
    asked = page_in(query, default=DEFAULT_PAGE, most=MAX_PAGE)
    found, has_more = await service.state.batches.page(service.owner(exchange), asked)
    ends: dict[str, Any] = {"first_id": None, "last_id": None}
    if found:
        ends = {"first_id": found[0].id, "last_id": found[-1].id}
    await exchange.send_json({"object": "list", "data": found, **ends, "has_more": has_more})


async def get_batch(service: Service, exchange: Exchange) -> None:
    batch_id = str(exchange.path_params["batch_id"])
    await exchange.send_json(await service.state.batches.get(batch_id, service.owner(exchange)))


async def post_cancel(service: Service, exchange: Exchange) -> None:
    batch_id, owner = str(exchange.path_params["batch_id"]), service.owner(exchange)
    await exchange.send_json(await service.state.batches.cancel(batch_id, owner))


def seconds_of(window: str) -> int:
    """Of a completion window such as 24h. Raises RequestError (400)."""
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * UNITS[found[2]] if found else 0
    if not 0 < seconds <= MAX_WINDOW:
        raise RequestError(
            f"completion_window is '{escaped(window)}': write it as 24h, up to 30d, in s, m, h or "
            "d",
            param="completion_window",
        )
    return seconds


def _output_seconds(after: ExpiresAfter | None) -> int | None:
    if after is None:
        return None
    if after.anchor != "created_at" or not MIN_SECONDS <= after.seconds <= MAX_SECONDS:
        raise RequestError(
            "output_expires_after has the anchor created_at and seconds from "
            f"{MIN_SECONDS} to {MAX_SECONDS}",
            param="output_expires_after",
        )
    return after.seconds
