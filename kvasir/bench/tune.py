"""Measures every variant of a model's kernels at once, for all numbers of rows: what the first
steps of an engine with ``--tuning auto`` do as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import msgspec

from kvasir.bench.fingerprint import Meter
from kvasir.bench.planned import opened
from kvasir.bench.workload import Workload
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.core.sizes import EngineSizes
from kvasir.engine.build import build_engine
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.exec.cpu.sites import CLASS_ENDS
from kvasir.exec.cpu.tuned import Choices

SAMPLES = 48
"""Times of each variant: four times what a served model takes."""
N_OUTPUT = 32
N_PROMPT = 8
MANY = 256
"""Rows of a step of the last class."""


class TunedModel(msgspec.Struct, frozen=True):
    model: str
    file: str
    """Where it is kept; empty: nowhere."""
    choices: Choices
    unsettled: tuple[int, ...]
    """Numbers of rows for which time was too short."""
    said: str
    seconds: float
    foreign: float
    """Share of the machine that others took meanwhile."""


def tune_model(options: EngineOptions, minutes: float) -> TunedModel:
    """Raises ModelError, ConfigError, KvasirError."""
    loaded = opened(options)
    built = build_engine(
        replace(options, tuning="auto", enable_prefix_caching=False), loaded=loaded
    )
    try:
        executor = built.executor
        if not isinstance(executor, CpuExecutor):
            raise ConfigError(f"the {options.executor} executor has no kernels to choose from")
        tuning, began = executor.tuning, time.monotonic()
        tuning.again(SAMPLES)
        workload, unsettled = Workload(built), []
        with Meter() as meter:
            for n_tokens, n_logits in _steps(built.config.sizes):
                key = 0
                while not tuning.is_settled(n_tokens, n_logits):
                    if time.monotonic() - began > 60 * minutes:
                        unsettled.append(n_tokens)
                        break
                    _measure(workload, n_tokens, n_logits, key)
                    key += 1
        seconds = time.monotonic() - began
        file = tuning.file
        return TunedModel(
            loaded.source.name,
            "" if file is None else str(file.path),
            {shape: dict(found) for shape, found in tuning.choices.items() if found},
            tuple(unsettled),
            tuning.describe(),
            seconds,
            meter.foreign,
        )
    finally:
        built.engine.close()


def _steps(sizes: EngineSizes) -> Iterator[tuple[int, int]]:
    """Tokens and logit rows of a step of each class that there is: requests that decode, where so
    many may run together; else a prompt."""
    most = min(sizes.max_num_batched_tokens, sizes.max_model_len - 1)
    for first, end in pairwise((0, *CLASS_ENDS, MANY)):
        n = min(end, most)
        if n > first:
            yield (n, n if n <= sizes.max_num_seqs and end < MANY else 1)


def _measure(workload: Workload, n_tokens: int, n_logits: int, key: int) -> None:
    if n_tokens == n_logits:
        workload.run(n_tokens, N_PROMPT, N_OUTPUT, key)
    else:
        workload.run(1, n_tokens, 1, key)
