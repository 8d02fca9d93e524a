"""Ollama's empty prompts: a model is asked to be there, or to go, and for nothing else."""

from __future__ import annotations

from datetime import UTC, datetime

from kvasir.core.errors import RequestError
from kvasir.serve.asked import LoadWish
from kvasir.serve.lifecycle import Unavailable
from kvasir.serve.resolved import Json
from kvasir.serve.service import Model, Service


async def load(service: Service, model: Model, wish: LoadWish) -> Json:
    """The answer, once it is so. Raises Unavailable (503), RequestError (400, 409), EngineDown."""
    if wish.goes:
        await _unload(service, model)
    else:
        await _load(service, model)
    at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reason = "unload" if wish.goes else "load"
    found = {
        "model": model.name,
        "created_at": at,
        **wish.said,
        "done": True,
        "done_reason": reason,
    }
    return {**found, "warnings": wish.warnings} if wish.warnings else found


async def _load(service: Service, model: Model) -> None:
    """An engine that sleeps is woken, unless the operator holds it."""
    await model.open()
    client = model.client
    if client.is_held:
        raise Unavailable("the operator put the engine to sleep: try again later", code="asleep")
    if service.supervisor is not None:
        await service.supervisor.awake()
    await model.open()


async def _unload(service: Service, model: Model) -> None:
    """Only where the operator lets engines sleep, and nobody uses it."""
    if service.options.sleep_idle_seconds is None or service.supervisor is None:
        raise RequestError(
            "keep_alive is 0: this server keeps its models, leave it out or start the server with "
            "--sleep-idle-seconds",
            param="keep_alive",
        )
    await model.open()
    client = model.client
    if client.n_streams:
        raise RequestError(
            f"{client.n_streams} requests use the model: ask again when they have ended",
            param="keep_alive",
            code="model_in_use",
            status=409,
        )
    if client.state != "asleep":
        await service.supervisor.sleep(is_held=False)
