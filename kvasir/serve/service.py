"""What every handler works with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.core.request import PLAIN, Context
from kvasir.serve.allocator import Leftovers
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.client import AsyncClient
from kvasir.serve.exchange import Exchange
from kvasir.serve.lifecycle import Lifecycle
from kvasir.serve.metrics import Metrics, ModelMetrics
from kvasir.serve.served import ServedResponses, owner_of
from kvasir.serve.text import TextModel


@dataclass(frozen=True)
class Model:
    """What a name stands for. Other names of it, and its adapters, are entries with the same engine
    and text; those of adapters have another context."""

    name: str
    """As clients say it, and are answered."""
    root: str
    """The engine's own name for it: the label of what is measured and remembered."""
    client: AsyncClient
    text: asyncio.Task[TextModel]
    lifecycle: Lifecycle
    metrics: ModelMetrics
    context: Context = PLAIN
    """Of its requests, each with a salt of its own or none."""

    async def open(self) -> tuple[TextModel, Ready]:
        """Text side and sizes of the engine, awaited while both load.

        Raises Unavailable (503) while the server drains, EngineDown when the engine is gone.
        """
        self.lifecycle.check_open()
        info = await self.client.wait_ready()
        return await asyncio.shield(self.text), info


@dataclass(frozen=True)
class Service:
    options: ServeOptions
    bodies: BodyBudget
    lifecycle: Lifecycle
    metrics: Metrics
    models: Mapping[str, Model]
    """By every name that is accepted; the first is the one of who names none."""
    draw_seed: Callable[[], int]
    """For requests without a seed."""
    created: int
    """Unix time of the start, seconds."""
    served: ServedResponses = field(default_factory=ServedResponses)
    leftovers: Leftovers = field(default_factory=Leftovers)

    @property
    def default(self) -> Model:
        return next(iter(self.models.values()))

    @property
    def clients(self) -> tuple[AsyncClient, ...]:
        """Of the engines."""
        return tuple(dict.fromkeys(model.client for model in self.models.values()))

    def owner(self, exchange: Exchange) -> bytes:
        """Who may ask about what this exchange starts."""
        return owner_of(exchange, has_keys=self.options.api_key is not None)

    def check_model(self, name: str | None) -> Model:
        """Raises RequestError (404)."""
        found = None if name is None else self.models.get(name)
        if found is not None:
            return found
        said = "is missing" if name is None else f"{name[:128]!r} does not exist"
        raise RequestError(
            f"the model {said}: use one of {', '.join(self.models)}",
            param="model",
            code="model_not_found",
            status=404,
        )

    def model_of(self, name: str | None) -> Model:
        """As ``check_model``, where no name needs to be said."""
        return self.default if name is None else self.check_model(name)
