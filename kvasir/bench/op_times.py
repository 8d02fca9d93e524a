"""Where the time of a model's real steps goes: each kind of op with its time, its work, and its
shares of what the machine was measured to do in the same run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.bench.ceilings import Ceilings, bandwidth_for
from kvasir.bench.ops import PEAK_OF_ROWS, Profile
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.exec.cpu.place_weights import MATRIX_OPS
from kvasir.ir.cost import op_cost, weights_read
from kvasir.ir.ops import Sizes
from kvasir.ir.program import Op, Program

ATTENDING = ("attention", "latent_attention")


class PhaseTime(msgspec.Struct, frozen=True):
    """Of one step: ops that do not depend on each other, timed together."""

    name: str
    seconds: float
    bytes: float
    flops: float
    peak: str | None
    """Of which arithmetic, by name of the ceilings; None: no linear and no attention."""


class OpTime(msgspec.Struct, frozen=True):
    """Of all phases of one name in a step."""

    name: str
    count: int
    seconds: float
    share: float
    """Of the time of all."""
    bytes: float
    flops: float
    memory: float | None
    """Share of the read bandwidth; None: not measured."""
    compute: float | None
    """Share of the peak of its arithmetic; None: not measured, or it has none to speak of."""


class StepTimes(msgspec.Struct, frozen=True):
    """Of a typical step: by phase the median of those that were timed."""

    n_steps: int
    n_tokens: int
    phases: tuple[PhaseTime, ...]
    ops: tuple[OpTime, ...]
    """The longest first."""


class TimedStep(NamedTuple):
    n_tokens: int
    n_logits: int
    seconds: NDArray[np.float64]


class PhaseTimer:
    """Keeps the time of every phase of every step: takes the place of what chooses kernels."""

    def __init__(self, n_phases: int) -> None:
        self._seconds = np.zeros(n_phases)
        self._sizes = (0, 0)
        self.steps: list[TimedStep] = []

    def begin(self, n_tokens: int, n_logits: int) -> NDArray[np.float64]:
        self._sizes = n_tokens, n_logits
        self._seconds[:] = 0
        return self._seconds

    def end(self) -> None:
        self.steps.append(TimedStep(*self._sizes, self._seconds.copy()))


def timed_steps(executor: CpuExecutor, run: Callable[[], object]) -> list[TimedStep]:
    """All steps that ``run`` has the executor compute."""
    timer, before = PhaseTimer(executor.phases), executor.timer
    executor.timer = timer
    try:
        run()
    finally:
        executor.timer = before
    return timer.steps


def step_times(
    profile: Profile, steps: Sequence[TimedStep], sizes: Sizes, ceilings: Ceilings
) -> StepTimes | None:
    """Of the ``steps`` that have the rows of ``sizes``; None where there is none."""
    program = profile.program
    rows = [step.seconds for step in steps if step.n_tokens == sizes.tokens]
    if not rows:
        return None
    typical = np.median(np.stack(rows), axis=0)
    phases = tuple(
        _phase(program, ops, float(seconds), sizes)
        for ops, seconds in zip(profile.ops, typical, strict=True)
    )
    bandwidth = bandwidth_for(ceilings, max(1, int(weights_read(program, sizes))))
    return StepTimes(len(rows), sizes.tokens, phases, _by_name(phases, bandwidth, ceilings))


def _phase(program: Program, ops: Sequence[Op], seconds: float, sizes: Sizes) -> PhaseTime:
    costs = [op_cost(program, op, sizes) for op in ops]
    names = dict.fromkeys(_name(program, op) for op in ops)
    peaks = {peak for peak in (_peak(program, op) for op in ops) if peak}
    return PhaseTime(
        " + ".join(names),
        seconds,
        sum(cost.bytes for cost in costs),
        sum(cost.flops for cost in costs),
        min(peaks) if peaks else None,
    )


def _name(program: Program, op: Op) -> str:
    if op.kind not in MATRIX_OPS:
        return op.kind
    weights = [program.weights[name] for name in op.weights if len(program.weights[name].shape) > 1]
    layouts = "/".join(dict.fromkeys(weight.layout or "f32" for weight in weights))
    columns = sum(weight.shape[-2] for weight in weights)
    return f"{op.kind} {layouts} {columns}x{weights[0].shape[-1]}"


def _peak(program: Program, op: Op) -> str | None:
    if op.kind in MATRIX_OPS:
        return PEAK_OF_ROWS[LAYOUTS[program.weights[op.weights[0]].layout or "f32"].act]
    if op.kind in ATTENDING:
        return "fp32" if all(spec.dtype == "f32" for spec in program.kv) else "bf16"
    return None


def _by_name(
    phases: Sequence[PhaseTime], bandwidth: float | None, ceilings: Ceilings
) -> tuple[OpTime, ...]:
    total = sum(phase.seconds for phase in phases) or 1.0
    found = []
    for name in dict.fromkeys(phase.name for phase in phases):
        own = [phase for phase in phases if phase.name == name]
        seconds = sum(phase.seconds for phase in own)
        moved, flops = sum(x.bytes for x in own), sum(x.flops for x in own)
        peak = ceilings.get(own[0].peak or "", {}).get("median")
        found.append(
            OpTime(
                name,
                len(own),
                seconds,
                round(seconds / total, 4),
                moved,
                flops,
                _share(moved, seconds, bandwidth),
                _share(flops, seconds, peak),
            )
        )
    return tuple(sorted(found, key=lambda op: -op.seconds))


def _share(amount: float, seconds: float, ceiling: float | None) -> float | None:
    return None if not ceiling or seconds <= 0 else round(amount / seconds / 1e9 / ceiling, 3)


def chrome_trace(steps: dict[str, StepTimes]) -> dict[str, object]:
    """For chrome://tracing and Perfetto: a typical step of each name, its phases one after the
    other, each name as a thread. Times in microseconds."""
    events: list[dict[str, object]] = []
    for thread, (name, step) in enumerate(steps.items()):
        said = {"name": f"{name} ({step.n_tokens} tokens)"}
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": said})
        at = 0.0
        for phase in step.phases:
            length = 1e6 * phase.seconds
            args = {"bytes": phase.bytes, "operations": phase.flops}
            events.append(
                {
                    "ph": "X",
                    "cat": phase.name.partition(" ")[0],
                    "name": phase.name,
                    "pid": 1,
                    "tid": thread,
                    "ts": round(at, 3),
                    "dur": round(length, 3),
                    "args": args,
                }
            )
            at += length
    return {"traceEvents": events, "displayTimeUnit": "ms"}
