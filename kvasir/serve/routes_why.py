"""GET /v1/requests/{id}/why: what made an answer slow, in words and seconds."""

from __future__ import annotations

from kvasir.serve.answers.page import RequestWhy
from kvasir.serve.exchange import Exchange
from kvasir.serve.routes_timeline import find_served
from kvasir.serve.service import Service


async def get_request_why(service: Service, exchange: Exchange) -> None:
    """Why each choice of a response of this key took as long as it did. Raises RequestError
    (404)."""
    served = find_served(service, exchange)
    client = service.models[served.model].client
    told: RequestWhy = {
        "id": served.id,
        "object": "request.why",
        "model": served.model,
        "choices": await service.explanations.choices(client, served),
    }
    await exchange.send_json(told)
