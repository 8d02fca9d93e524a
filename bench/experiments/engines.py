"""Engines for experiments: a real model in real time, or the fake executor in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.experiments.base import Json, Settings
from bench.experiments.drive import Clock, VirtualClock, WallClock
from kvasir.bench.report import describe_engine
from kvasir.checkpoints.loaded import LoadedModel, load_model
from kvasir.config.options import EngineOptions
from kvasir.config.resolved import SchedulerConfig
from kvasir.core.params import TokenParams
from kvasir.core.plan import StepPlan
from kvasir.core.request import EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.engine.build import build_engine
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.timing.timeline import Timeline

SEED = 20
FAKE_VOCAB = 256

FAKE: Json = {"model": "none", "executor": "fake", "clock": "virtual"}


@dataclass(frozen=True, slots=True)
class Made:
    """An engine with its clock."""

    engine: Engine
    clock: Clock
    sizes: EngineSizes
    described: Json
    block_bytes: int = 0
    """Of a real KV memory."""
    warm: Callable[[], None] = lambda: None
    """Returns when that memory has its pages."""


class Models:
    """Opens the model of an experiment once, and builds engines of it."""

    def __init__(self, settings: Settings) -> None:
        self.options = settings.options
        self._loaded: LoadedModel = load_model(settings.options.model)

    @contextmanager
    def engine(self, **changes: Any) -> Iterator[Made]:
        """An engine with ``changes`` to the options, closed afterwards. Raises ConfigError."""
        options: EngineOptions = replace(self.options, **changes)
        built = build_engine(options, loaded=self._loaded)
        try:
            yield Made(
                built.engine,
                WallClock(),
                built.config.sizes,
                describe_engine(self._loaded, built),
                built.config.kv.block_bytes,
                getattr(built.executor, "warm", lambda: None),
            )
        finally:
            built.engine.close()


def fake_engine(
    config: SchedulerConfig, seconds: Callable[[StepPlan], float] | None = None
) -> Made:
    """``seconds`` says what a step takes; default: 1 each."""
    clock = VirtualClock()
    # Tests check the same plans; here that would be most of the time.
    executor = FakeExecutor(config.sizes, seconds=seconds or (lambda plan: 1.0), is_checked=False)
    engine = Engine(executor, Scheduler(config, timeline=Timeline(clock.now)))
    return Made(
        engine,
        clock,
        config.sizes,
        FAKE,
    )


STEP_COST = "2 ms + 50 us a row + 0.5 ms a token"


def cpu_like(plan: StepPlan) -> float:
    """Seconds of a step of a small model on a few cores, in virtual time."""
    return 2e-3 + 5e-5 * len(plan.rows) + 5e-4 * plan.n_tokens


def tokens(vocab_size: int, n: int, *key: int) -> tuple[int, ...]:
    """``n`` random ids, the same for the same ``key``."""
    generator = np.random.default_rng((SEED, *key))
    return tuple(generator.integers(0, vocab_size, n).tolist())


def greedy(i: int, prompt: Sequence[int], n_outputs: int, **more: Any) -> EngineRequest:
    """A request that gives exactly ``n_outputs`` tokens."""
    params = TokenParams(seed=i, max_tokens=n_outputs, temperature=0.0)
    return EngineRequest(i, tuple(prompt), params, **more)
