"""What bounds a model on this machine: its phases, in shares of what memory and arithmetic allow,
and where more requests at a time stop paying."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from kvasir.bench.ceilings import Ceilings, bandwidth_for, measure_ceilings
from kvasir.bench.fingerprint import Meter
from kvasir.bench.planned import opened
from kvasir.bench.workload import Workload
from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine
from kvasir.exec.cpu.backend import CPU
from kvasir.ir.cost import program_cost, weights_read
from kvasir.ir.ops import Sizes
from kvasir.ir.program import Program
from kvasir.models.loaded import model_facts

Bound = Literal["memory", "compute", "neither"]
NEAR = 0.5
"""Share of a ceiling from which it is what bounds."""
N_DECODE = 64
N_PREFILL = 512
CONTEXT = 64
OPERATING = 0.75
"""Share of the largest throughput at which to run a server: behind it waits grow faster."""
HELPS = {
    "memory": "fewer bytes help: a smaller quantization, more requests at a time, drafts "
    "(--speculative-config)",
    "compute": "more cores help, or a CPU with AVX-512 VNNI or AMX",
    "neither": "steps are short beside what they wait for: more requests at a time help",
}


class PhaseProfile(msgspec.Struct, frozen=True):
    name: str
    tokens_per_second: float
    memory: float | None
    """Share of the read bandwidth; None: not measured."""
    compute: float | None
    """Share of the peak of its arithmetic."""

    @property
    def bound(self) -> Bound:
        memory, compute = self.memory or 0.0, self.compute or 0.0
        if max(memory, compute) < NEAR:
            return "neither"
        return "memory" if memory >= compute else "compute"


class LoadPoint(NamedTuple):
    n: int
    """Requests at a time."""
    tokens_per_second: float
    seconds_between_tokens: float


class ModelProfile(msgspec.Struct, frozen=True):
    model: str
    arithmetic: str
    ceilings: dict[str, Any]
    phases: tuple[PhaseProfile, ...]
    load: tuple[LoadPoint, ...] = ()
    foreign: float = 0.0
    """Share of the machine that others took meanwhile."""


def profile_model(options: EngineOptions, *, with_load: bool) -> ModelProfile:
    """Raises ModelError, ConfigError, KvasirError."""
    loaded = opened(options)
    built = build_engine(options, loaded=loaded)
    n_seqs = built.config.sizes.max_num_seqs
    try:
        workload = Workload(built)
        n_batch = min(16, n_seqs)
        n_prompt = min(N_PREFILL, built.config.sizes.max_model_len - 1)
        with Meter() as meter:
            rates = (
                _decode(workload, 1),
                _decode(workload, n_batch),
                _prefill(workload, n_prompt),
            )
            load = tuple(_loads(workload, n_seqs)) if with_load else ()
    finally:
        built.engine.close()
    ceilings = measure_ceilings(built.config.executor.threads, repeat=1)
    program, _ = CPU.program(loaded, built.config)
    kind = arithmetic_of(built.config.model.dtype, model_facts(loaded).weight_dtype)
    steps = (
        ("decode", rates[0], Sizes(1, 1, CONTEXT, CONTEXT)),
        (f"batch of {n_batch}", rates[1], Sizes(n_batch, n_batch, *(2 * (n_batch * CONTEXT,)))),
        (f"prefill of {n_prompt}", rates[2], Sizes(n_prompt, 1, n_prompt**2 // 2, n_prompt)),
    )
    phases = tuple(phase(*step, program, ceilings, kind) for step in steps)
    return ModelProfile(loaded.source.name, kind, ceilings, phases, load, meter.foreign)


def arithmetic_of(dtype: str, weight_dtype: str) -> str:
    """Whose peak bounds it, by name of the ceilings."""
    if dtype == "float32":
        return "fp32"
    return "int8" if weight_dtype == "quantized" else "bf16"


def phase(
    name: str, rate: float, sizes: Sizes, program: Program, ceilings: Ceilings, kind: str
) -> PhaseProfile:
    """``rate``: tokens a second, of steps of ``sizes``."""
    cost = program_cost(program, sizes)
    steps = rate / sizes.tokens
    bandwidth = bandwidth_for(ceilings, max(1, int(weights_read(program, sizes))))
    peak = ceilings.get(kind, {}).get("median")
    return PhaseProfile(
        name,
        round(rate, 2),
        None if bandwidth is None else round(cost.bytes * steps / 1e9 / bandwidth, 3),
        None if not peak else round(cost.flops * steps / 1e9 / peak, 3),
    )


def _decode(workload: Workload, n: int) -> float:
    """Tokens a second of ``n`` requests at a time, after their first."""
    workload.run(n, CONTEXT // 2, 2)
    found = workload.run(n, CONTEXT // 2, N_DECODE, key=1)
    first, last = max(x.first for x in found), max(x.last for x in found)
    return n * (N_DECODE - 1) / (last - first)


def _prefill(workload: Workload, n_prompt: int) -> float:
    workload.run(1, n_prompt, 1)
    return n_prompt / workload.run(1, n_prompt, 1, key=1)[0].first


def _loads(workload: Workload, n_most: int) -> list[LoadPoint]:
    """At 1, 2, 4 … requests at a time."""
    points, n = [], 1
    while n <= n_most:
        rate = _decode(workload, n)
        points.append(LoadPoint(n, round(rate, 2), round(n / rate, 6)))
        n *= 2
    return points


def knee(points: Sequence[LoadPoint]) -> LoadPoint:
    """Where the curve of throughput over latency turns: farthest above the line from its first
    point to its last (Kneedle: Satopaa and others, 2011). ``points``: at least one."""
    low, high = points[0], points[-1]
    width = high.seconds_between_tokens - low.seconds_between_tokens
    height = high.tokens_per_second - low.tokens_per_second

    def above(point: LoadPoint) -> float:
        x = (point.seconds_between_tokens - low.seconds_between_tokens) / (width or 1.0)
        return (point.tokens_per_second - low.tokens_per_second) / (height or 1.0) - x

    return max(points, key=above)


def operating_point(points: Sequence[LoadPoint]) -> LoadPoint:
    """The fewest requests at a time that give 75 % of the most."""
    most = max(point.tokens_per_second for point in points)
    return next(point for point in points if point.tokens_per_second >= OPERATING * most)
