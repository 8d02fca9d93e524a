"""How long steps of a model would take in another format, measured on this machine: its own shapes
with random numbers, of a large one as many layers as tell what each adds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace as with_options

import msgspec

from kvasir.bench.pretend import pretended
from kvasir.bench.workload import Workload
from kvasir.checkpoints.loaded import LoadedModel
from kvasir.config.cpu import PACKED_CACHE_OFF
from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine

WHOLE_BYTES = 1 << 30
"""Weights in the file up to which all layers are measured."""
PART_BYTES = 384 << 20
"""Of the fewer layers of a larger model: they outgrow the caches as all of them would."""
N_DECODE = 24
SHORT = 32
"""Tokens of the prompts whose decoding is measured."""
CONTEXT_TOKENS = 2048
"""Most tokens of prompts, of all rows together, in the measurement of a long context."""
REPEAT = 3


class FormatTimes(msgspec.Struct, frozen=True):
    """Seconds."""

    prompt: float
    """Of one request's, alone."""
    step: float
    """Of a step of all requests, behind short prompts."""

    def to_layers(self, fewer: FormatTimes, n_fewer: int, n: int, n_all: int) -> FormatTimes:
        """Of ``n_all`` layers, where these are of ``n``, and ``fewer`` of ``n_fewer``."""
        share = (n_all - n) / (n - n_fewer)
        return FormatTimes(
            self.prompt + share * max(0.0, self.prompt - fewer.prompt),
            self.step + share * max(0.0, self.step - fewer.step),
        )


class RequestLoad(msgspec.Struct, frozen=True):
    """What is asked for: so many requests at a time, of so many tokens each."""

    batch: int = 1
    prompt: int = 512
    output: int = 128

    @property
    def n_tokens(self) -> int:
        """That the KV cache holds at the end."""
        return self.batch * (self.prompt + self.output)

    @property
    def context(self) -> int:
        """Positions that a decoded token attends to, in the middle."""
        return self.prompt + self.output // 2


def format_times(
    model: LoadedModel,
    formats: Mapping[str, str],
    n_bytes: int,
    load: RequestLoad,
    options: EngineOptions,
) -> FormatTimes:
    """Of ``model`` with linears of ``formats``, ``n_bytes`` in the file. Raises ConfigError."""
    n_all = len(model.config.layers)
    if n_bytes <= WHOLE_BYTES or n_all < 4:
        return _measured(model, formats, n_all, load, options)
    fewer = max(1, min(n_all // 2, round(n_all * PART_BYTES / n_bytes)))
    n = min(n_all, 2 * fewer)
    low = _measured(model, formats, fewer, load, options)
    return _measured(model, formats, n, load, options).to_layers(low, fewer, n, n_all)


def attention_seconds(model: LoadedModel, load: RequestLoad, options: EngineOptions) -> float:
    """What each position of context beyond ``SHORT`` adds to a step, as the model is."""
    rows = max(1, min(load.batch, CONTEXT_TOKENS // load.context))
    room = model.config.max_positions - N_DECODE - 1
    long = min(load.context, CONTEXT_TOKENS, room) - SHORT
    if long < SHORT:
        return 0.0
    n_all = len(model.config.layers)
    n = max(1, min(n_all, n_all * WHOLE_BYTES // max(1, _bytes(model))))
    workload = _workload(model, {}, n, RequestLoad(rows, SHORT + long + N_DECODE), options)
    try:
        far, near = _steps(workload, rows, SHORT + long), _steps(workload, rows, SHORT)
    finally:
        workload.built.engine.close()
    return max(0.0, far - near) / long * (load.batch / rows) * (n_all / n)


def _bytes(model: LoadedModel) -> int:
    return sum(info.n_bytes for info in model.source.tensors.listing())


def _measured(
    model: LoadedModel,
    formats: Mapping[str, str],
    n_layers: int,
    load: RequestLoad,
    options: EngineOptions,
) -> FormatTimes:
    workload = _workload(model, formats, n_layers, load, options)
    try:
        prompt = _prompt(workload, load.prompt)
        return FormatTimes(prompt, _steps(workload, load.batch, SHORT))
    finally:
        workload.built.engine.close()


def _workload(
    model: LoadedModel,
    formats: Mapping[str, str],
    n_layers: int,
    load: RequestLoad,
    options: EngineOptions,
) -> Workload:
    longest = max(load.prompt, SHORT + N_DECODE) + 1
    asked = with_options(
        options,
        max_model_len=longest,
        max_num_seqs=load.batch,
        packed_cache=PACKED_CACHE_OFF,
        tuning="off",
        enable_prefix_caching=False,
    )
    return Workload(build_engine(asked, loaded=pretended(model, formats, n_layers)))


def _prompt(workload: Workload, n_tokens: int) -> float:
    """The first run warms up."""
    runs = [workload.run(1, n_tokens, 1, key=i)[0].first for i in range(REPEAT)]
    return min(runs[1:])


def _steps(workload: Workload, n_rows: int, n_prompt: int) -> float:
    """Seconds of a step of ``n_rows``: from the last first token to the first last one."""
    found = []
    for key in range(REPEAT):
        times = workload.run(n_rows, n_prompt, N_DECODE, key=key)
        begin = max(x.first for x in times)
        slowest = max(times, key=lambda x: x.first)
        n_steps = sum(x > begin for x in slowest.tokens)
        found.append((slowest.last - begin) / n_steps if n_steps else 0.0)
    return statistics.median(found[1:])
