"""What bounds a model on this machine: its phases, in shares of what memory and arithmetic allow,
and where more requests at a time stop paying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from kvasir.bench.ceilings import Ceilings, bandwidth_for, mean_ceilings, measure_ceilings
from kvasir.bench.fingerprint import Meter
from kvasir.bench.op_times import StepTimes, TimedStep, step_times, timed_steps
from kvasir.bench.ops import Profile
from kvasir.bench.planned import opened
from kvasir.bench.workload import Workload
from kvasir.checkpoints.loaded import model_facts
from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine
from kvasir.exec.cpu.backend import CPU
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.ir.cost import program_cost, weights_read
from kvasir.ir.ops import Sizes
from kvasir.ir.program import Program

Bound = Literal["memory", "compute", "neither"]
NEAR = 0.5
"""Share of a ceiling from which it is what bounds."""
N_DECODE = 64
N_PREFILL = 512
N_ROWS = 16
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
    step: StepTimes | None = None
    """Its ops; None on an executor that does not time them."""

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
    kernels: str = ""
    """Which variants ran; empty on an executor without any."""


class _ProfiledRun(NamedTuple):
    """Steps of one kind, and how fast they were."""

    name: str
    sizes: Sizes
    rate: float
    """Tokens a second."""
    steps: list[TimedStep]


def profile_model(
    options: EngineOptions, *, with_load: bool, n_rows: int = N_ROWS, context: int = CONTEXT
) -> ModelProfile:
    """``n_rows``: requests of the batch; ``context``: positions that a decoded token attends to.
    Raises ModelError, ConfigError, KvasirError."""
    loaded = opened(options)
    built = build_engine(options, loaded=loaded)
    sizes = built.config.sizes
    try:
        before = measure_ceilings(built.config.executor.threads, repeat=1)
        workload = Workload(built)
        n_prompt = min(N_PREFILL, sizes.max_model_len - 1, sizes.max_num_batched_tokens)
        with Meter() as meter:
            runs = [
                _decode_run("decode", workload, 1, context),
                _decode_run("batch of {}", workload, min(n_rows, sizes.max_num_seqs), context),
                _prefill_run(workload, n_prompt),
            ]
            load = tuple(_loads(workload, sizes.max_num_seqs)) if with_load else ()
        n_threads = built.config.executor.threads
        ceilings = mean_ceilings(before, measure_ceilings(n_threads, repeat=1))
        program, _ = CPU.program(loaded, built.config)
        kind = arithmetic_of(built.config.model.dtype, model_facts(loaded).weight_dtype)
        timed = built.executor if isinstance(built.executor, CpuExecutor) else None
        kernels = "" if timed is None else timed.tuning.describe()
        profile = None if timed is None else Profile(timed, program)
        phases = tuple(
            replace(
                phase(run.name, run.rate, run.sizes, program, ceilings, kind),
                step=profile and step_times(profile, run.steps, run.sizes, ceilings),
            )
            for run in runs
        )
    finally:
        built.engine.close()
    name = loaded.source.name
    return ModelProfile(name, kind, ceilings, phases, load, meter.foreign, kernels)


def _decode_run(name: str, workload: Workload, n: int, context: int) -> _ProfiledRun:
    rates: list[float] = []
    n_prompt = max(1, context - N_DECODE // 2)
    steps = _timed(workload, lambda: rates.append(_decode(workload, n, n_prompt)))
    sizes = Sizes(n, n, *(2 * (n * (n_prompt + N_DECODE // 2),)))
    return _ProfiledRun(name.format(n), sizes, rates[0], steps)


def _prefill_run(workload: Workload, n: int) -> _ProfiledRun:
    rates: list[float] = []
    steps = _timed(workload, lambda: rates.append(_prefill(workload, n)))
    return _ProfiledRun(f"prefill of {n}", Sizes(n, 1, n**2 // 2, n), rates[0], steps)


def _timed(workload: Workload, run: Callable[[], object]) -> list[TimedStep]:
    executor = workload.built.executor
    if isinstance(executor, CpuExecutor):
        return timed_steps(executor, run)
    run()
    return []


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


def _decode(workload: Workload, n: int, n_prompt: int = CONTEXT // 2) -> float:
    """Tokens a second of ``n`` requests at a time, after their first."""
    workload.run(n, n_prompt, 2)
    found = workload.run(n, n_prompt, N_DECODE, key=1)
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
