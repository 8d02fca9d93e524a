"""POST /v1/chat/completions/control: what may be said of an answer that is on its way."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.exchange import Exchange
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.service import Service

ACTIONS = ("reasoning_end",)


class ControlRequest(msgspec.Struct, frozen=True):
    id: str
    """Of the answer, as its first event says it."""
    action: str
    model: str | None = None
    """Known from the id."""


async def post_control(service: Service, exchange: Exchange) -> None:
    """Ends the reasoning of an answer of this key. Raises RequestError (400, 404)."""

    def read(body: dict[str, Any]) -> ControlRequest:
        return parse_request(ControlRequest, body, {}, strict=service.options.strict)[0]

    async with exchange.reading(read) as asked:
        if asked.action not in ACTIONS:
            raise RequestError(f"action must be {' or '.join(ACTIONS)}", param="action")
        served = service.served.get(asked.id[:256], service.owner(exchange))
        if served is None:
            raise RequestError(
                f"no answer {asked.id[:64]!r} is known: use the id that its first event says, with "
                "the key that it was asked with",
                param="id",
                code="not_found",
                status=404,
            )
        n_told = service.models[served.model].client.end_thinking(served.ids)
    if not n_told:
        raise RequestError(
            "the answer has ended, or has no reasoning that may be ended: ask for it with "
            "reasoning_control: true",
            param="id",
        )
    if served.id in service.state.chats.live:
        await service.state.progress.ask_end(served.id, range(served.n_choices))
    await exchange.send_json({"id": served.id, "action": asked.action, "success": True})
