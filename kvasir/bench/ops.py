"""Kernels as a share of what the machine allows, measured inside real steps.

A step of the native program is timed phase by phase. Of each kind of op the report has the time,
the arithmetic and the bytes that it must move, and ``share``: the time of the slower of the two at
the measured ceilings over the time it took. 1 is the roofline. The ceilings are measured before
and after all of it; the shares are of their mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvasir.bench.ceilings import (
    Ceilings,
    bandwidth_for,
    changed,
    mean_ceilings,
    measure_ceilings,
)
from kvasir.bench.fingerprint import Meter
from kvasir.bench.planned import planned_executor
from kvasir.bench.synthetic import synthetic_executor, synthetic_program
from kvasir.config.cpu import CpuConfig
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.core.kvtypes import KV_TYPES
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen, StepPlan, TableChange
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from kvasir.exec.cpu.layouts import LAYOUTS
from kvasir.ir.cost import op_cost
from kvasir.ir.ops import Sizes
from kvasir.ir.program import Op, Program
from kvasir.timing.cost import Load, chunk_load

FORMATS = tuple({layout: name for name, layout in LAYOUT_OF_FORMAT.items()}.values())
"""One for every packed layout that formats have."""
GREEDY = TokenParams(seed=0, max_tokens=1, temperature=0.0)
PEAK_OF_ROWS = {"q8": "int8", "bf16": "bf16", "f32": "fp32"}
STEADY = 0.15
"""Above this change of a ceiling during the measurement the table says so."""


@dataclass(frozen=True, slots=True)
class OpsSettings:
    formats: tuple[str, ...] = FORMATS
    rows: tuple[int, ...] = (1, 8, 64, 512)
    """Tokens of a step whose linears are measured, after a context of none."""
    contexts: tuple[int, ...] = (1024, 8192)
    """Positions that one decoded token attends to."""
    kv_dtypes: tuple[str, ...] = tuple(KV_TYPES)
    """Types of the KV cache under those positions."""
    repeat: int = 5


@dataclass(slots=True)
class _Work:
    """Of one kind of op in a step."""

    seconds: float = 0.0
    flops: float = 0.0
    bytes: float = 0.0


@dataclass(frozen=True, slots=True)
class _Measured:
    """A row of the report, before its share is known."""

    labels: dict[str, Any]
    work: _Work
    touched: int
    """Bytes that a step reads: they choose the bandwidth."""
    peak: str
    """Kind of the ceiling of the arithmetic."""


@dataclass(slots=True)
class Profile:
    """Phases of a program's steps, each named by the kinds of its ops."""

    executor: CpuExecutor
    program: Program
    ops: list[list[Op]] = field(default_factory=list)
    """Per phase, in order."""

    def __post_init__(self) -> None:
        lowered = self.executor.lowered
        phases = sorted({record.phase for record in lowered.records})
        owner: dict[int, list[int]] = {phase: [] for phase in phases}
        for record, op in zip(lowered.records, lowered.op_of_record, strict=True):
            if op not in owner[record.phase]:
                owner[record.phase].append(op)
        self.ops = [[self.program.ops[i] for i in owner[phase]] for phase in phases]

    def measure(self, plan: StepPlan, repeat: int) -> dict[str, _Work]:
        """Kind of op -> its work in ``plan``, the median time of ``repeat`` runs of each phase.

        A phase of several kinds counts as one, named by all of them. Not the least time: it is
        thread 0 that looks at the clock, and where it comes late, others did the phase meanwhile.
        """
        runs = np.zeros((repeat + 1, self.executor.phases))
        for seconds in runs:
            self.executor.run(plan, seconds=seconds)
        typical = np.median(runs[1:], axis=0)  # the first warms up
        sizes = _sizes(plan)
        found: dict[str, _Work] = {}
        for ops, seconds_of_phase in zip(self.ops, typical.tolist(), strict=True):
            kinds = "+".join(sorted({op.kind for op in ops}))
            work = found.setdefault(kinds, _Work())
            work.seconds += seconds_of_phase
            for op in ops:
                cost = op_cost(self.program, op, sizes)
                work.flops += cost.flops
                work.bytes += cost.bytes
        return found


def cpu_settings(options: EngineOptions) -> CpuSettings:
    """Threads and level that an engine of ``options`` gets. Raises ConfigError."""
    planned = planned_executor(options)
    isa = planned.isa if isinstance(planned, CpuConfig) else "scalar"
    return CpuSettings(planned.threads, isa)


def measure_ops(settings: OpsSettings, cpu: CpuSettings) -> dict[str, Any]:
    """ "results" has "linear", rows by format and tokens, and "attention", rows by KV type and
    context; "ceilings" the mean of "ceilings_before" and "ceilings_after". Raises ConfigError on
    an unknown format."""
    unknown = sorted(set(settings.formats) - LAYOUT_OF_FORMAT.keys())
    if unknown:
        names = ", ".join(LAYOUT_OF_FORMAT)
        raise ConfigError(f"no format {', '.join(unknown)}: use one of {names}")
    before = measure_ceilings(cpu.threads)
    with Meter() as meter:
        linear = [row for name in settings.formats for row in _linears(name, settings, cpu)]
        attention = [row for kv in settings.kv_dtypes for row in _attention(kv, settings, cpu)]
    after = measure_ceilings(cpu.threads)
    ceilings = mean_ceilings(before, after)
    return {
        "results": {
            "linear": [_row(row, ceilings) for row in linear],
            "attention": [_row(row, ceilings) for row in attention],
            "foreign": meter.foreign,
        },
        "ceilings": ceilings,
        "ceilings_before": before,
        "ceilings_after": after,
    }


def _linears(name: str, settings: OpsSettings, cpu: CpuSettings) -> list[_Measured]:
    n_tokens = max(settings.rows)
    program, binding = synthetic_program(name, n_tokens)
    profile = Profile(synthetic_executor(program, binding, n_tokens, n_tokens, cpu), program)
    peak = PEAK_OF_ROWS[LAYOUTS[_layout(program)].act]
    found = []
    for n in settings.rows:
        work = profile.measure(_chunk(0, n), settings.repeat)["linear"]
        labels = {"format": name, "layout": _layout(program), "rows": n}
        found.append(_Measured(labels, work, _all_weights(program), peak))
    return found


def _attention(kv_dtype: str, settings: OpsSettings, cpu: CpuSettings) -> list[_Measured]:
    chunk, context = 512, max(settings.contexts, default=0)
    if not context:
        return []
    program, binding = synthetic_program("Q4_0", context + 1, kv_dtype)
    executor = synthetic_executor(program, binding, chunk, context + 1, cpu)
    profile = Profile(executor, program)
    for start in range(0, context, chunk):
        executor.run(_chunk(start, min(chunk, context - start)))
    peak = PEAK_OF_ROWS["f32" if kv_dtype == "f32" else "bf16"]
    found = []
    for n in settings.contexts:
        work = profile.measure(_chunk(n, 1), settings.repeat)["attention"]
        # the weights of a step put its keys and values out of the caches
        touched = _all_weights(program) + int(work.bytes)
        found.append(_Measured({"kv": kv_dtype, "context": n}, work, touched, peak))
    return found


def _row(measured: _Measured, ceilings: Ceilings) -> dict[str, Any]:
    work = measured.work
    bandwidth, peak = bandwidth_for(ceilings, measured.touched), _rate(ceilings, measured.peak)
    row: dict[str, Any] = measured.labels | {
        "microseconds": round(work.seconds * 1e6, 1),
        "GB/s": round(work.bytes / work.seconds / 1e9, 1),
        "GOP/s": round(work.flops / work.seconds / 1e9, 1),
    }
    if bandwidth is not None and peak is not None:
        least = max(work.bytes / bandwidth, work.flops / peak) / 1e9
        row["share"] = round(least / work.seconds, 3)
        row["bound"] = "memory" if work.bytes / bandwidth > work.flops / peak else "arithmetic"
    return row


def _all_weights(program: Program) -> int:
    """Bytes."""
    return int(sum(weight.n_bytes for weight in program.weights.values()))


def _rate(ceilings: Ceilings, kind: str) -> float | None:
    rate = ceilings[kind].get("median")
    return None if rate is None else float(rate)


def _layout(program: Program) -> str:
    """Of the matrices that the blocks use."""
    return next(
        weight.layout for weight in program.weights.values() if weight.name.endswith("down")
    )


def _chunk(start: int, n_tokens: int) -> StepPlan:
    """Tokens [start, start + n_tokens) of one sequence, one logit row."""
    tokens = tuple(i % 256 for i in range(n_tokens))
    table = TableChange(0, 0, 0, tuple(range(-(-(start + n_tokens) // 16))))
    opens = (SlotOpen(0, GREEDY, (1,)),)
    return StepPlan(0, (Row(0, start, tokens),), opens, (table,))


def _sizes(plan: StepPlan) -> Sizes:
    load = Load()
    for row in plan.rows:
        load = load.plus(chunk_load(len(row.tokens), row.start))
    return Sizes(plan.n_tokens, plan.n_logits, load.pairs, load.entries)


def markdown(document: dict[str, Any]) -> str:
    """A table of formats by rows, and one of contexts by KV type: shares of the ceilings."""
    results, machine = document["results"], document["machine"]
    ceilings = {name: entry.get("median") for name, entry in document["ceilings"].items()}
    linear = {(row["format"], row["rows"]): row for row in results["linear"]}
    attention = {(row["kv"], row["context"]): row for row in results["attention"]}
    lines = [
        f"{document['engine']['threads']} threads, {document['engine']['isa']}, {machine['cpu']} "
        f"({machine['cpu_family']}), {machine['time']}, commit {machine['commit']}; others "
        f"took {results['foreign']:.1%} of the machine.",
        "",
        f"Ceilings (GB/s, G operations/s), mean of before and after: {ceilings}.",
        "",
        *_unsteady(document["ceilings_before"], document["ceilings_after"]),
        "Cells: microseconds of all linears of a step, share of the ceiling that binds.",
        "",
        *_grid("linear, by rows", linear),
    ]
    if attention:
        lines += ["", *_grid("decode attention, by context", attention)]
    return "\n".join(lines) + "\n"


def _unsteady(before: Ceilings, after: Ceilings) -> list[str]:
    """A paragraph about ceilings that changed by more than ``STEADY``, or nothing."""
    changes = {kind: x for kind, x in changed(before, after).items() if abs(x) > STEADY}
    if not changes:
        return []
    words = ", ".join(f"{kind} {change:+.0%}" for kind, change in changes.items())
    return [f"**Not steady: from before to after, ceilings changed: {words}.**", ""]


def _grid(title: str, rows: Mapping[tuple[str, int], dict[str, Any]]) -> list[str]:
    names = list(dict.fromkeys(name for name, _ in rows))
    columns = list(dict.fromkeys(column for _, column in rows))
    lines = [f"| {title} | {' | '.join(map(str, columns))} |", "|---|" + "--:|" * len(columns)]
    for name in names:
        cells = (_cell(rows[name, column]) for column in columns)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(row: dict[str, Any]) -> str:
    if "share" not in row:
        return f"{row['microseconds']:.0f}"
    return f"{row['microseconds']:.0f}, {row['share']:.0%} of {row['bound']}"
