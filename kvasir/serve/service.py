"""What every handler works with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.client import AsyncClient
from kvasir.serve.exchange import Exchange
from kvasir.serve.lifecycle import Lifecycle
from kvasir.serve.metrics import Metrics
from kvasir.serve.served import ServedResponses, owner_of
from kvasir.serve.text import TextModel


@dataclass(frozen=True)
class Service:
    options: ServeOptions
    bodies: BodyBudget
    client: AsyncClient
    lifecycle: Lifecycle
    metrics: Metrics
    names: tuple[str, ...]
    """Names of the model; the first is its own, the others are accepted too."""
    text: asyncio.Task[TextModel]
    draw_seed: Callable[[], int]
    """For requests without a seed."""
    created: int
    """Unix time of the start, seconds."""
    served: ServedResponses = field(default_factory=ServedResponses)

    async def open(self) -> tuple[TextModel, Ready]:
        """Text side and sizes of the engine, awaited while both load.

        Raises Unavailable (503) while the server drains, EngineDown when the engine is gone.
        """
        self.lifecycle.check_open()
        info = await self.client.wait_ready()
        return await asyncio.shield(self.text), info

    def owner(self, exchange: Exchange) -> bytes:
        """Who may ask about what this exchange starts."""
        return owner_of(exchange, has_keys=self.options.api_key is not None)

    def check_model(self, name: str | None) -> str:
        """The name to answer with. Raises RequestError (404)."""
        if name in self.names and name is not None:
            return name
        said = "is missing" if name is None else f"{name[:128]!r} does not exist"
        raise RequestError(
            f"the model {said}: use one of {', '.join(self.names)}",
            param="model",
            code="model_not_found",
            status=404,
        )
