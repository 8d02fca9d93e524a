"""What every handler works with."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kvasir.config.serving import ServeOptions
from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.core.request import PLAIN, Context
from kvasir.serve.allocator import Leftovers
from kvasir.serve.bodies import BodyBudget
from kvasir.serve.client import AsyncClient
from kvasir.serve.dashboard import Monitor
from kvasir.serve.exchange import Exchange
from kvasir.serve.explained import Explanations
from kvasir.serve.fetch import ImageFetcher
from kvasir.serve.images import ImageReader
from kvasir.serve.keys.caller import Caller
from kvasir.serve.keys.keyring import Keyring
from kvasir.serve.late import LateLog
from kvasir.serve.lifecycle import Lifecycle
from kvasir.serve.metrics import Metrics, ModelMetrics
from kvasir.serve.prefixes import NewestPrompts
from kvasir.serve.probe import Prober
from kvasir.serve.reload import Current
from kvasir.serve.served import ServedResponses
from kvasir.serve.sessions import Sessions
from kvasir.serve.state.state import State
from kvasir.serve.supervisor import Supervisor
from kvasir.serve.text import TextModel
from kvasir.serve.trial import TrialCompiler


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
    compiler: TrialCompiler
    """Of grammars over its tokens."""
    images: ImageReader = field(default_factory=ImageReader)
    """Of its requests' images."""
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
    current: Current
    bodies: BodyBudget
    lifecycle: Lifecycle
    metrics: Metrics
    models: Mapping[str, Model]
    """By every name that is accepted; the first is the one of who names none."""
    draw_seed: Callable[[], int]
    """For requests without a seed."""
    created: int
    """Unix time of the start, seconds."""
    state: State
    supervisor: Supervisor | None = None
    """Of the engine of ``default``."""
    keys: Keyring = field(default_factory=Keyring)
    observers: Sequence[Callable[[Exchange], None]] = ()
    """Told of every exchange that has ended."""
    n_noted: int = 0
    """Bytes of each body that logs may show."""
    prober: Prober = field(default_factory=Prober)
    served: ServedResponses = field(default_factory=ServedResponses)
    late: LateLog = field(default_factory=LateLog)
    explanations: Explanations = field(default_factory=Explanations)
    monitor: Monitor = field(default_factory=Monitor)
    """At ``default``, for dashboards."""
    prefixes: NewestPrompts = field(default_factory=NewestPrompts)
    sessions: Sessions = field(default_factory=Sessions)
    leftovers: Leftovers = field(default_factory=Leftovers)
    fetcher: ImageFetcher = field(default_factory=ImageFetcher)
    """Of images that have addresses."""

    @property
    def options(self) -> ServeOptions:
        """Those that hold now."""
        return self.current.options

    @property
    def default(self) -> Model:
        return next(iter(self.models.values()))

    @property
    def is_loaded(self) -> bool:
        """Whether engine and text side of ``default`` were loaded, whatever came later."""
        text = self.default.text
        loaded = text.done() and not text.cancelled() and text.exception() is None
        return loaded and self.default.client.info is not None

    @property
    def clients(self) -> tuple[AsyncClient, ...]:
        """Of the engines."""
        return tuple(dict.fromkeys(model.client for model in self.models.values()))

    async def sees(self) -> bool:
        """Whether any model reads images, awaited while they load."""
        tasks = dict.fromkeys(model.text for model in self.models.values())
        texts = [await asyncio.shield(task) for task in tasks]
        return any(text.sight is not None for text in texts)

    def owner(self, exchange: Exchange) -> bytes:
        """Who may ask about what this exchange starts: a key, whichever of its secrets is used; the
        same for all where the server has none."""
        return exchange.caller.key_id.encode()

    def caller_of(self, owner: bytes) -> Caller:
        """Whose ``owner`` stands for, as its key is now: for work that outlives its request."""
        return self.keys.named(owner.decode())

    def check_model(self, name: str | None) -> Model:
        """Raises RequestError: 400 without a name, 404 for one that does not exist."""
        if name is None:
            raise RequestError(
                f"the model is missing: use one of {', '.join(self.models)}",
                param="model",
                code="missing_required_parameter",
            )
        found = self.models.get(name)
        if found is not None:
            return found
        raise RequestError(
            f"the model {name[:128]!r} does not exist: use one of {', '.join(self.models)}",
            param="model",
            code="model_not_found",
            status=404,
        )

    def model_of(self, name: str | None) -> Model:
        """As ``check_model``, where no name needs to be said."""
        return self.default if name is None else self.check_model(name)
