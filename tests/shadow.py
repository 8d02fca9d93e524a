"""A shadow of a native step: each op's reference computes on what the native op read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kvasir.core.plan import StepPlan
from kvasir.exec.cpu.executor import CpuExecutor
from kvasir.exec.reference.cache import BlockCache, StepLayout
from kvasir.exec.tables import SlotTables
from kvasir.exec.taken import StateStep
from kvasir.ir.memory import aligned
from kvasir.ir.numerics import GROUP, Q8
from kvasir.ir.ops import OPS, KvView, Rows
from kvasir.ir.program import FloatArray, Op, Program
from tests.loading import Loaded, sizes_for


@dataclass(frozen=True, slots=True)
class Compared:
    op: Op
    native: tuple[Rows, ...]
    reference: tuple[Rows, ...]


@dataclass(slots=True)
class _Env:
    """The reference's own cache, written from what the native program computed."""

    program: Program
    layout: StepLayout
    cache: BlockCache
    constants: dict[str, FloatArray] = field(init=False)

    def __post_init__(self) -> None:
        self.constants = dict(self.program.constants)

    def write_kv(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        self.cache.write(layer, self.layout.store_slots(layer), k, v)

    def view(self, layer: int, token: int, end: int = 0) -> KvView:
        return self.layout.view(layer, token, end)

    def sample(self, logits: FloatArray) -> NDArray[np.int32]:
        raise NotImplementedError("a shadow ends at the logits")


@dataclass(frozen=True, slots=True)
class Shadow:
    """``plan`` is the first of ``executor``; its logits fit one tile."""

    model: Loaded
    executor: CpuExecutor
    weights: dict[str, FloatArray]
    plan: StepPlan

    def steps(self) -> Iterator[Compared]:
        """Every op but the draw; the native step is run up to each op's phase."""
        spec, program = sizes_for(self.model.config), self.model.program
        cache = BlockCache(program.kv, spec.groups, spec.block_size)
        tables = SlotTables(spec)
        tables.apply(self.plan)
        taken = [StateStep(row.start, (), len(row.tokens)) for row in self.plan.rows]
        layout = StepLayout(self.plan.rows, tables.of_rows(self.plan), cache, taken)
        env = _Env(program, layout, cache)
        lowered = self.executor.lowered
        plan = self.plan
        for index, op in enumerate(program.ops):
            if op.kind == "sample":
                return
            self.executor.run(plan, until=lowered.op_of_record.index(index))
            plan = StepPlan(self.plan.step, self.plan.rows)
            ins = [self._input(name, index, env.layout) for name in op.ins]
            weights = [self.weights[name] for name in op.weights]
            expected = OPS[op.kind].reference(op, ins, weights, env)
            yield Compared(op, tuple(self._read(name, index) for name in op.outs), expected)

    def _input(self, name: str, index: int, layout: StepLayout) -> Rows:
        if name == "tokens":
            return np.array([token for row in self.plan.rows for token in row.tokens], np.int32)
        if name in self.model.program.inputs:
            return layout.positions() if name == "positions" else layout.logit_rows()
        return self._read(name, index)

    def _read(self, name: str, index: int) -> Rows:
        """A value at op ``index``; rows of pairs are put back from expert order."""
        value = self.model.program.values[name]
        buffer = self.executor.lowered.buffers[self.executor.lowered.values[name]]
        symbol = value.shape[0]
        n_tokens, n_logits = self.plan.n_tokens, self.plan.n_logits
        n = {"T": n_tokens, "R": n_logits, "P": n_tokens * self.executor.lowered.top_k}[str(symbol)]
        rows = self._rows(
            buffer.offset, buffer.dtype, buffer.columns, buffer.max_rows, buffer.block
        )
        order = self._place(n, index) if symbol == "P" else np.arange(n)
        if isinstance(rows, Q8):
            return Q8(rows.data[order], rows.scales[order], rows.sums[order])
        return rows[order]

    def _place(self, n: int, index: int) -> NDArray[np.int32]:
        """Where each pair lies, from the grouping before op ``index``."""
        lowered = self.executor.lowered
        record = [
            record
            for record, op in zip(lowered.records, lowered.op_of_record, strict=True)
            if record.kind == "group_pairs" and op <= index
        ][-1]
        return self._array(lowered.buffers[record.outs[1]].offset, "<i4", n, 1)[:, 0]

    def _rows(self, offset: int, dtype: str, columns: int, rows: int, block: int) -> Rows:
        if dtype == "bf16":
            bits = self._array(offset, "<u2", rows, columns).astype(np.uint32) << np.uint32(16)
            return bits.view(np.float32)
        if dtype != "q8":
            return self._array(offset, {"f32": "<f4", "i32": "<i4"}[dtype], rows, columns)
        scales = offset + aligned(rows * columns)
        sums = scales + aligned(rows * (columns // block) * 4)
        return Q8(
            self._array(offset, "<i1", rows, columns),
            self._array(scales, "<f4", rows, columns // block),
            self._array(sums, "<i4", rows, columns // GROUP * 2).reshape(rows, -1, 2),
        )

    def _array(self, offset: int, dtype: str, rows: int, columns: int) -> NDArray[np.generic]:
        n_bytes = rows * columns * np.dtype(dtype).itemsize
        raw = self.executor.arena[offset : offset + n_bytes].view(dtype)
        return raw.reshape(rows, columns).copy()
