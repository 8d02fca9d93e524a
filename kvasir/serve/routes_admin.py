"""Routes of the operator; they listen on the admin port alone."""

from __future__ import annotations

from kvasir.serve.exchange import Exchange
from kvasir.serve.service import Service


async def post_reset_prefix_cache(service: Service, exchange: Exchange) -> None:
    """Requests that come after the answer find nothing of what was computed before.

    What runs goes on. Raises EngineDown (503).
    """
    for client in service.clients:
        await client.wait_ready()
        client.reset_prefix_cache()
    await exchange.send_json({"status": "reset"})
