"""Routes of the operator; they listen on the admin port alone."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.exchange import Exchange
from kvasir.serve.pause import MODES, abort, pause
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.query import read_query
from kvasir.serve.resolved import Json
from kvasir.serve.service import Service
from kvasir.serve.supervisor import Supervisor


async def post_reset_prefix_cache(service: Service, exchange: Exchange) -> None:
    """Requests that come after the answer find nothing of what was computed before.

    What runs goes on. Raises EngineDown (503).
    """
    for client in service.clients:
        await client.wait_ready()
        await client.reset_prefix_cache()
    await exchange.send_json({"status": "reset"})


async def post_reset_mm_cache(service: Service, exchange: Exchange) -> None:
    """vLLM's: images of requests that come after the answer go through the tower again, but for
    those whose KV blocks are cached. Raises EngineDown (503)."""
    read_query(exchange, ())
    for client in service.clients:
        await client.wait_ready()
        client.reset_mm_cache()
    await exchange.send_json({"status": "reset"})


async def post_engine_swap(service: Service, exchange: Exchange) -> None:
    """Another engine, with the options that the body names, goes on with what runs.

    Raises RequestError: 400 on what is no option, 409 when the new engine could not give the same
    answers; BadStart (503) when it does not start. The old one serves on then.
    """
    supervisor = _supervisor(service)
    async with exchange.reading(dict) as changes:
        info = await supervisor.swap(changes)
    sizes = {"max_num_seqs": info.max_num_seqs, "max_model_len": info.max_model_len}
    await exchange.send_json({"status": "swapped", **sizes, "reasons": info.reasons})


async def post_sleep(service: Service, exchange: Exchange) -> None:
    """vLLM's: the engine process ends, whichever its ``level`` (1 or 2), and its memory is free.
    What runs and what comes waits for ``/wake_up``. Raises RequestError (400, 409)."""
    level = read_query(exchange, ("level",)).get("level", "1")
    if level not in ("1", "2"):
        raise RequestError("level is 1 or 2, which do the same here", param="level")
    await _supervisor(service).sleep(is_held=True)
    await exchange.send_json({"status": "asleep"})


async def post_wake_up(service: Service, exchange: Exchange) -> None:
    """vLLM's: returns when the engine is there again. Raises EngineDown (503)."""
    read_query(exchange, ())
    await _supervisor(service).awake()
    await exchange.send_json({"status": "awake"})


async def post_pause(service: Service, exchange: Exchange) -> None:
    """vLLM's: what comes waits for ``/resume``. What runs ends with an error (``mode=abort``), is
    waited for (``wait``), or stands still (``keep``). Raises RequestError (400), EngineDown."""
    query = read_query(exchange, ("mode", "clear_cache"))
    mode = next((known for known in MODES if known == query.get("mode", "abort")), None)
    if mode is None:
        raise RequestError(f"mode must be one of {', '.join(MODES)}", param="mode")
    clears = query.get("clear_cache", "true").lower()
    if clears not in ("true", "false"):
        raise RequestError("clear_cache is true or false", param="clear_cache")
    for client in service.clients:
        await client.wait_ready()
        await pause(client, mode)
        if clears == "true":
            await client.reset_prefix_cache()
    await exchange.send_json({"status": "paused"})


async def post_resume(service: Service, exchange: Exchange) -> None:
    """vLLM's: all goes on."""
    read_query(exchange, ())
    for client in service.clients:
        client.gate.open()
    await exchange.send_json({"status": "resumed"})


async def get_is_paused(service: Service, exchange: Exchange) -> None:
    """vLLM's."""
    read_query(exchange, ())
    await exchange.send_json({"is_paused": any(x.gate.is_closed for x in service.clients)})


class AbortRequest(msgspec.Struct, frozen=True, kw_only=True):
    request_ids: list[str] = msgspec.field(default_factory=list)


async def post_abort_requests(service: Service, exchange: Exchange) -> None:
    """vLLM's: ends the requests whose answers have these ids, each in full; without ids all that
    run. Who has ended already is no error."""

    def read(body: Json) -> AbortRequest:
        return parse_request(AbortRequest, body, {}, strict=True)[0]

    async with exchange.reading(read) as asked:
        names = asked.request_ids
    if not names:
        n_aborted = sum(abort(client) for client in service.clients)
    else:
        found = [x for x in map(service.served.find, dict.fromkeys(names)) if x is not None]
        n_aborted = sum(abort(service.models[x.model].client, x.ids) for x in found)
    await exchange.send_json({"status": "aborted", "requests": n_aborted})


async def get_is_sleeping(service: Service, exchange: Exchange) -> None:
    """vLLM's."""
    read_query(exchange, ())
    await exchange.send_json({"is_sleeping": service.default.client.counts.is_asleep})


def _supervisor(service: Service) -> Supervisor:
    if service.supervisor is None:
        raise RequestError("the engine is not this server's", status=409)
    return service.supervisor
