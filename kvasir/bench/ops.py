"""Kernels as a share of what the machine allows, measured inside real steps.

A step of the native program is timed phase by phase. Of each kind of op the report has the time,
the arithmetic and the bytes that it must move, and ``share``: the time of the slower of the two at
the measured ceilings over the time it took. 1 is the roofline.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvasir import _native
from kvasir.bench.ceilings import bandwidth_for, measure_ceilings
from kvasir.bench.fingerprint import Meter
from kvasir.bench.synthetic import synthetic_executor, synthetic_program
from kvasir.config.env import read_env
from kvasir.config.hardware import probe
from kvasir.config.options import EngineOptions
from kvasir.core.errors import ConfigError
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen, StepPlan
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from kvasir.ir.cost import op_cost, weight_bytes
from kvasir.ir.kvtypes import KV_TYPES
from kvasir.ir.layouts import LAYOUT_OF_FORMAT, LAYOUTS
from kvasir.ir.ops import Sizes
from kvasir.ir.program import Op, Program

FORMATS = (
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "Q2_K", "Q3_K",
    "IQ4_XS", "MXFP4", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S", "IQ1_M", "TQ1_0",
    "TQ2_0", "BF16", "F32",
)  # fmt: skip
"""One of every packed layout that a format has for its own."""
GREEDY = TokenParams(seed=0, max_tokens=1, temperature=0.0)
PEAK_OF_ROWS = {"q8": "int8", "bf16": "bf16", "f32": "fp32"}

Ceilings = dict[str, dict[str, Any]]


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
    """Threads and level as asked, else all cores and the best level. Raises ConfigError."""
    hardware = probe(tuple(_native.levels()))
    isa = options.isa or read_env().isa or hardware.isa_levels[-1]
    if isa not in hardware.isa_levels:
        levels = ", ".join(hardware.isa_levels)
        raise ConfigError(f"isa {isa!r} cannot run on this CPU: use one of {levels}")
    return CpuSettings(options.threads or hardware.n_cores, isa)


def measure_ops(settings: OpsSettings, cpu: CpuSettings) -> dict[str, Any]:
    """{"linear": rows by format and tokens, "attention": rows by KV type and context}, ceilings
    included. Raises ConfigError on an unknown format."""
    unknown = sorted(set(settings.formats) - LAYOUT_OF_FORMAT.keys())
    if unknown:
        names = ", ".join(LAYOUT_OF_FORMAT)
        raise ConfigError(f"no format {', '.join(unknown)}: use one of {names}")
    ceilings = measure_ceilings(cpu.threads)
    with Meter() as meter:
        linear = [
            row for name in settings.formats for row in _linears(name, settings, cpu, ceilings)
        ]
        attention = [
            row for kv in settings.kv_dtypes for row in _attention(kv, settings, cpu, ceilings)
        ]
    return {
        "results": {"linear": linear, "attention": attention, "foreign": meter.foreign},
        "ceilings": ceilings,
    }


def _linears(
    name: str, settings: OpsSettings, cpu: CpuSettings, ceilings: Ceilings
) -> list[dict[str, Any]]:
    n_tokens = max(settings.rows)
    program, binding = synthetic_program(name, n_tokens)
    profile = Profile(synthetic_executor(program, binding, n_tokens, n_tokens, cpu), program)
    peak = PEAK_OF_ROWS[LAYOUTS[_layout(program)].act]
    bandwidth = bandwidth_for(ceilings, _all_weights(program))
    found = []
    for n in settings.rows:
        work = profile.measure(_chunk(0, n), settings.repeat)["linear"]
        found.append(
            {"format": name, "layout": _layout(program), "rows": n}
            | _row(work, bandwidth, _rate(ceilings, peak))
        )
    return found


def _attention(
    kv_dtype: str, settings: OpsSettings, cpu: CpuSettings, ceilings: Ceilings
) -> list[dict[str, Any]]:
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
        bandwidth = bandwidth_for(ceilings, _all_weights(program) + int(work.bytes))
        found.append({"kv": kv_dtype, "context": n} | _row(work, bandwidth, _rate(ceilings, peak)))
    return found


def _row(work: _Work, bandwidth: float | None, peak: float | None) -> dict[str, Any]:
    """``bandwidth`` GB/s, ``peak`` G operations a second."""
    row: dict[str, Any] = {
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
    return int(sum(weight_bytes(weight) for weight in program.weights.values()))


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
    blocks = tuple(range(-(-(start + n_tokens) // 16)))
    opens = (SlotOpen(0, GREEDY, (1,)),)
    return StepPlan(0, (Row(0, start, tokens, (blocks,)),), opens)


def _sizes(plan: StepPlan) -> Sizes:
    rows: Sequence[Row] = plan.rows
    attended = sum(
        len(row.tokens) * row.start + len(row.tokens) * (len(row.tokens) + 1) // 2 for row in rows
    )
    entries = sum(row.start + len(row.tokens) for row in rows)
    return Sizes(plan.n_tokens, plan.n_logits, attended, entries)


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
        f"Ceilings (GB/s, G operations/s): {ceilings}.",
        "",
        "Cells: microseconds of all linears of a step, share of the ceiling that binds.",
        "",
        *_grid("linear, by rows", linear),
    ]
    if attention:
        lines += ["", *_grid("decode attention, by context", attention)]
    return "\n".join(lines) + "\n"


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
