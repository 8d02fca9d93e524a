"""Health, metrics, version and models."""

from __future__ import annotations

from kvasir import __version__
from kvasir.core.errors import RequestError
from kvasir.serve.answer import Json
from kvasir.serve.endpoint import Handler
from kvasir.serve.errors import describe_error
from kvasir.serve.exchange import Exchange
from kvasir.serve.metrics import CONTENT_TYPE
from kvasir.serve.service import Service
from kvasir.serve.slices import Work


async def get_live(service: Service, exchange: Exchange) -> None:
    """The process answers."""
    await exchange.send_json({"status": "live"})


async def get_health(service: Service, exchange: Exchange) -> None:
    """The engine works."""
    await _send_state(exchange, *service.lifecycle.health)


async def get_ready(service: Service, exchange: Exchange) -> None:
    """New requests are taken."""
    await _send_state(exchange, *service.lifecycle.ready)


async def _send_state(exchange: Exchange, is_well: bool, word: str) -> None:
    await exchange.send_json({"status": word}, 200 if is_well else 503)


async def get_metrics(service: Service, exchange: Exchange) -> None:
    """Takes some milliseconds: one answer in each pass of the event loop."""

    def text() -> Work[bytes]:
        yield
        return service.metrics.text()

    await exchange.send_bytes(await service.client.slices.run(text()), CONTENT_TYPE)


async def get_version(service: Service, exchange: Exchange) -> None:
    await exchange.send_json({"version": __version__})


async def get_models(service: Service, exchange: Exchange) -> None:
    info = await service.client.wait_ready()
    cards = [_card(service, name, info.max_model_len) for name in service.names]
    await exchange.send_json({"object": "list", "data": cards})


async def get_model(service: Service, exchange: Exchange) -> None:
    name = service.check_model(exchange.path_params["model"])
    info = await service.client.wait_ready()
    await exchange.send_json(_card(service, name, info.max_model_len))


def _card(service: Service, name: str, max_model_len: int) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": service.created,
        "owned_by": "kvasir",
        "root": service.names[0],
        "parent": None,
        "max_model_len": max_model_len,
    }


async def not_found(service: Service, exchange: Exchange) -> None:
    path = str(exchange.scope["path"])[:256]
    raise RequestError(f"there is no route {path!r}", code="not_found", status=404)


def only(method: str) -> Handler:
    """A handler for all methods but ``method``."""

    async def refuse(service: Service, exchange: Exchange) -> None:
        path = str(exchange.scope["path"])[:256]
        error = RequestError(f"{path!r} takes {method} only", code="method_not_allowed", status=405)
        service.metrics.count_error(error.code)
        allow = [(b"allow", method.encode())]
        await exchange.send_json(describe_error(error), error.status, allow)

    return refuse
