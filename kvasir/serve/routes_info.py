"""Health, metrics, version and models."""

from __future__ import annotations

from kvasir import __version__
from kvasir.core.errors import RequestError
from kvasir.serve.answers.openai import ModelCard
from kvasir.serve.endpoint import Handler
from kvasir.serve.errors import describe_error
from kvasir.serve.exchange import Exchange
from kvasir.serve.health import report
from kvasir.serve.metrics import CONTENT_TYPE
from kvasir.serve.query import parsed
from kvasir.serve.service import Model, Service
from kvasir.serve.slices import Work


async def get_live(service: Service, exchange: Exchange) -> None:
    """The process answers."""
    await exchange.send_json({"status": "live"})


async def get_startup(service: Service, exchange: Exchange) -> None:
    """The model was loaded; it stays so."""
    word = "started" if service.is_loaded else service.lifecycle.health[1]
    await _send_state(exchange, service.is_loaded, word)


async def get_health(service: Service, exchange: Exchange) -> None:
    """Every part of the server works."""
    is_well, told = await report(service)
    await exchange.send_json(told, 200 if is_well else 503)


async def get_ready(service: Service, exchange: Exchange) -> None:
    """New requests are taken."""
    await _send_state(exchange, *service.lifecycle.ready)


async def _send_state(exchange: Exchange, is_well: bool, word: str) -> None:
    await exchange.send_json({"status": word}, 200 if is_well else 503)


async def get_metrics(service: Service, exchange: Exchange) -> None:
    """Takes some milliseconds: one answer in each pass of the event loop. ``name[]``, which may be
    said several times, asks for these families alone."""
    names = frozenset(parsed(exchange).get("name[]", ()))

    def text() -> Work[bytes]:
        yield
        return service.metrics.text(names)

    await exchange.send_bytes(await service.default.client.slices.run(text()), CONTENT_TYPE)


async def get_version(service: Service, exchange: Exchange) -> None:
    await exchange.send_json({"version": __version__})


async def get_models(service: Service, exchange: Exchange) -> None:
    cards = [await _card(service, model) for model in service.models.values()]
    await exchange.send_json({"object": "list", "data": cards})


async def get_model(service: Service, exchange: Exchange) -> None:
    model = service.check_model(exchange.path_params["model"])
    await exchange.send_json(await _card(service, model))


async def _card(service: Service, model: Model) -> ModelCard:
    info = await model.client.wait_ready()
    return {
        "id": model.name,
        "object": "model",
        "created": service.created,
        "owned_by": "kvasir",
        "root": model.root,
        "parent": None,
        "max_model_len": info.max_model_len,
    }


async def not_found(service: Service, exchange: Exchange) -> None:
    path = str(exchange.scope["path"])[:256]
    raise RequestError(f"there is no route {path!r}", code="not_found", status=404)


def only(*methods: str) -> Handler:
    """A handler for all methods but ``methods``."""
    allowed = ", ".join(methods)

    async def refuse(service: Service, exchange: Exchange) -> None:
        path = str(exchange.scope["path"])[:256]
        error = RequestError(
            f"{path!r} takes {allowed} only", code="method_not_allowed", status=405
        )
        service.metrics.count_error(error.code)
        allow = [(b"allow", allowed.encode())]
        await exchange.send_json(describe_error(error), error.status, allow)

    return refuse
