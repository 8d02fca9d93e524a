"""The reference executor: any program, any stage, plain NumPy."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, repeat
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from kvasir.core.drawn import Drawn
from kvasir.core.errors import KvasirError
from kvasir.core.plan import Copy, Move, Row, RowOutput, SlotOpen, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.checks import check_plan, check_states, need, refuse_programs
from kvasir.exec.drafting import (
    DraftRow,
    DraftStep,
    Settled,
    Siblings,
    drafts_of,
    followed_by,
    followed_rows,
)
from kvasir.exec.local import LocalExecutor
from kvasir.exec.masks import PlainMasks
from kvasir.exec.media import MediaRows, blind
from kvasir.exec.pooling import PooledSlots, StepPool, Sums
from kvasir.exec.reference.cache import BlockCache, StepLayout
from kvasir.exec.reference.interpreter import Observer, interpret
from kvasir.exec.reference.tower import ReferenceTower
from kvasir.exec.rope_positions import RopePositions
from kvasir.exec.rows import LogitRow, with_ids
from kvasir.exec.successors import Successors
from kvasir.exec.taken import StateSlots, StateStep
from kvasir.exec.token_types import TokenTypes
from kvasir.ir.bundle import (
    DRAFT,
    IS_MEDIA,
    MEDIA,
    POOL,
    ROPE_POSITIONS,
    Bundle,
    Tower,
    as_bundle,
    media_inputs,
)
from kvasir.ir.numerics import round_bf16
from kvasir.ir.ops import KvView, Rows
from kvasir.ir.ops.checks import width
from kvasir.ir.pieces import TowerPieces
from kvasir.ir.pool import POOL_ROWS
from kvasir.ir.program import FloatArray, Program
from kvasir.sampling.classical import Role
from kvasir.sampling.reference import SlotState, likeliest, sample_row
from kvasir.weights.bind import Binding


def _tower(tower: Tower, weights: Mapping[str, FloatArray]) -> ReferenceTower:
    return ReferenceTower(tower, weights, TowerPieces.of(tower))


def load_weights(program: Program | Bundle, binding: Binding) -> dict[str, FloatArray]:
    """All weights as f32; those of layout "bf16" hold bf16 values."""
    weights = {}
    for name, weight in program.weights.items():
        values = binding[name].dequantize()
        weights[name] = round_bf16(values) if weight.layout == "bf16" else values
    return weights


@dataclass(slots=True)
class _Step:
    """The ``Env`` of one step."""

    constants: Mapping[str, FloatArray]
    layout: StepLayout
    cache: BlockCache
    states: Mapping[int, SlotState]
    logit_rows: tuple[LogitRow, ...]
    masks: PlainMasks | None
    sizes: EngineSizes
    outputs: tuple[RowOutput, ...] = ()
    pooling: _Pooling | None = None

    def write_kv(self, layer: int, k: FloatArray, v: FloatArray) -> None:
        self.cache.write(layer, self.layout.store_slots(layer), k, v)

    def view(self, layer: int, token: int, end: int = 0) -> KvView:
        return self.layout.view(layer, token, end)

    def state(self, layer: int, token: int) -> FloatArray:
        return self.layout.state(layer, token)

    def sample(self, logits: FloatArray) -> NDArray[np.int32]:
        self.outputs = tuple(
            self._draw(i, row, values)
            for i, (row, values) in enumerate(zip(self.logit_rows, logits, strict=True))
        )
        return np.array([output.token for output in self.outputs], np.int32)

    def pool(self, rows: FloatArray) -> FloatArray:
        if self.pooling is None:
            raise KvasirError("nothing is pooled in this step")
        return self.pooling.add(rows)

    def _draw(self, i: int, row: LogitRow, logits: FloatArray) -> RowOutput:
        state, mask = self.states[row.slot], None if self.masks is None else self.masks.wait(i)
        n_siblings = self.sizes.draft_width - 1 if row.drafts else 0
        role = Role(row.drafts, row.drafted[0] if row.drafted else -1, n_siblings)
        output = sample_row(logits, state, row.out_index, row.path, row.target, mask, role)
        digest = blake2b(logits.tobytes(), digest_size=8).digest()
        return structs.replace(
            output,
            logits_hash=int.from_bytes(digest, "little"),
            candidates=likeliest(logits, self.sizes.n_candidates),
        )


@dataclass(slots=True)
class _Pooling:
    """What a step adds to the sums of its slots."""

    step: StepPool
    sums: Sums
    counts: dict[int, int]
    """Rows in each slot's sum."""

    def add(self, rows: FloatArray) -> FloatArray:
        means = np.empty_like(rows)
        for i, (slot, row) in enumerate(zip(self.step.slots, rows, strict=True)):
            self.sums.array[slot] += row
            self.counts[slot] += 1
            means[i] = self.sums.array[slot] / self.counts[slot]
        return means


class ReferenceExecutor(LocalExecutor[PlainMasks]):
    """Runs plans with the ops' references. The program decides the numerics.

    A raw program, or one lowered with dtype float32, computes with dequantized weights and f32
    activations; one lowered with dtype auto quantizes activations as the native integer path does.
    """

    new_masks = PlainMasks

    def __init__(
        self, program: Program | Bundle, weights: Mapping[str, FloatArray], sizes: EngineSizes
    ) -> None:
        super().__init__(sizes)
        self._bundle = as_bundle(program)
        refuse_programs(self._bundle)
        check_states(self._bundle, sizes)
        self.program = self._bundle.target
        self._weights = weights
        n_own = len(self._bundle.target.kv)
        self._cache = BlockCache(self._bundle.kv, sizes.groups, sizes.block_size, n_own)
        self._states: dict[int, SlotState] = {}
        self._drawn = Drawn()
        self._taken = StateSlots(sizes)
        self._rows: list[StateStep] = []
        """Of the running plan's rows."""
        self._pooled = PooledSlots()
        pool = self._bundle.pool
        n_columns = 0 if pool is None else width(pool.values[pool.outputs[0]])
        self._sums = Sums(sizes.max_num_seqs, n_columns)
        self._counts: dict[int, int] = {}
        self._given: dict[str, NDArray[Any]] = {}
        if MEDIA in self.program.inputs:
            tower = self._bundle.tower
            rows_of = blind if tower is None else _tower(tower, weights).rows
            n = sizes.max_num_batched_tokens
            is_media = np.zeros(n, np.int32)
            values = [self.program.values[name] for name in media_inputs(self.program)]
            rows = {x.name: np.zeros((n, width(x)), np.float32) for x in values}
            self._given = {**rows, IS_MEDIA: is_media}
            ends = np.zeros(n, np.int32) if "ends" in self.program.inputs else None
            if ends is not None:
                self._given["ends"] = ends
            self._media = MediaRows(rows_of, list(rows.values()), is_media, ends)
        self._rope_positions = RopePositions()
        self._types = TokenTypes()
        self._successors = Successors()

    def run(self, plan: StepPlan) -> StepResult:
        """Raises KvasirError when the plan breaks ``sizes``."""
        begin = time.monotonic()
        if not plan.rows:
            self._begin(plan)
            self._pooled.of(plan)
            self._drawn = Drawn.by(plan, ())
            return self._told((), begin)
        step, values = self._run(plan, None, None)
        vectors = self._pool(plan, step, values)
        drafting = time.monotonic()
        drafts, siblings = self._draft(plan, step, values)
        end = time.monotonic()
        self._drawn = Drawn.by(plan, step.outputs, drafts, siblings)
        self._taken.drew(plan, step.outputs)
        told = self._told(step.outputs, begin)
        return structs.replace(
            told,
            drafts=drafts,
            siblings=siblings,
            vectors=vectors,
            draft_seconds=end - drafting,
        )

    def _told(self, outputs: tuple[RowOutput, ...], begin: float) -> StepResult:
        towers = 0.0 if self._media is None else self._media.seconds
        return StepResult(outputs, time.monotonic() - begin, begin, tower_seconds=towers)

    def trace(
        self, plan: StepPlan, *, until: str | None = None, observe: Observer | None = None
    ) -> dict[str, Rows]:
        """Runs a plan and gives all values.

        ``until`` names the last value to compute, ``observe`` sees each op and its outputs.
        """
        step, values = self._run(plan, until, observe)
        self._drawn = Drawn.by(plan, step.outputs)
        return values

    def read_block(self, group: int, block: int) -> bytes:
        return self._cache.read_block(group, block)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        self._cache.write_block(group, block, data)

    def move(self, move: Move) -> None:
        self._cache.move(move, self.tables.of(move.slot, max(move.src, move.dst) + 1))

    def copy(self, copy: Copy) -> None:
        self._cache.copy(copy)

    def close(self) -> None:
        super().close()
        self._states.clear()

    def _run(
        self, plan: StepPlan, until: str | None, observe: Observer | None
    ) -> tuple[_Step, dict[str, Rows]]:
        given = self._begin(plan)
        rows, wanted = with_ids(plan, self._drawn)
        return self._compute(
            self.program, rows, wanted, given, masks=self.masks, until=until, observe=observe
        )

    def _begin(self, plan: StepPlan) -> dict[str, Rows]:
        """All that comes before the target; what it reads beside the rows."""
        self.tables.apply(plan)
        tables = self.tables.of_rows(plan)
        check_plan(plan, self.sizes, tables, self._states.keys(), self._drawn)
        self._rope_positions.open(plan)
        self._types.open(plan)
        self._successors.open(plan)
        self._open_slots(plan)
        self._rows = self._taken.begin(plan)
        given: dict[str, Rows] = {"types": np.array(self._types.of(plan.rows), np.int32)}
        if self._media is not None:
            self._media.write(plan)
            given |= {name: array[: plan.n_tokens] for name, array in self._given.items()}
        return given

    def _pool(self, plan: StepPlan, step: _Step, values: Mapping[str, Rows]) -> tuple[bytes, ...]:
        """The pool program over the tokens of the plan that are pooled."""
        pool, found = self._bundle.pool, self._pooled.of(plan)
        if pool is None or not (found.tokens or found.ended):
            return ()
        self._sums.begin(found)
        self._counts |= dict.fromkeys(found.begun, 0)
        if found.tokens:
            step.pooling = _Pooling(found, self._sums, self._counts)
            rows = np.array(found.tokens, np.int32)
            inputs = {name: values[name] for name in self._bundle.read_by(POOL)}
            interpret(pool, {**inputs, POOL_ROWS: rows}, self._weights, step)
        return self._sums.vectors(found)

    def _draft(
        self, plan: StepPlan, step: _Step, values: Mapping[str, Rows]
    ) -> tuple[tuple[tuple[int, ...], ...], Siblings]:
        """The draft program over what it is to take in, and as often as rows ask for drafts."""
        draft, asks = self._bundle.draft, any(row.n_drafts for row in plan.rows)
        need(draft is not None or not asks, "a row asks for drafts, and there is no draft program")
        if draft is None:
            return (), ()
        settled = Settled.by(*with_ids(plan, self._drawn), step.outputs)
        names = self._bundle.read_by(DRAFT)
        exports: dict[str, Rows] = {name: np.asarray(values[name])[settled.kept] for name in names}
        need(not (plan.follows and exports), "a draft program reads exports of all rows")
        is_head = bool(self._bundle.carried)
        if is_head and plan.follows is not None:
            need(not asks, "a head is asked for drafts in a step that it does not read")
            return (), ()
        if is_head:
            after = self._successors.of(plan.rows)
            followed = followed_by(settled.rows, settled.outputs, after)
        else:
            followed = followed_rows(plan, self._drawn, settled)
        if followed:
            self._compute(draft, followed, (), exports)
        if not asks:
            return (), ()
        width = self.sizes.draft_width
        return drafts_of(settled, self._draft_step(exports), int(is_head), width)

    def _draft_step(self, exports: Mapping[str, Rows]) -> DraftStep:
        """Draws the next token of chains, in the order in which these go on."""
        carried: dict[int, Rows] = {}
        programs = chain(self._bundle.drafts, repeat(self._bundle.drafts[-1]))

        def draft_step(chosen: Sequence[DraftRow]) -> list[list[int]]:
            found = {
                name: np.stack([carried.get(x.row.slot, value[x.after]) for x in chosen])
                for name, value in exports.items()
            }
            step, values = self._compute(
                next(programs), [x.row for x in chosen], [x.logits for x in chosen], found
            )
            if self._bundle.carried:
                rows = values[self._bundle.carried]
                carried.update({x.row.slot: row for x, row in zip(chosen, rows, strict=True)})
            return [[x.token, *(token for token, _ in x.top)] for x in step.outputs]

        return draft_step

    def _compute(
        self,
        program: Program,
        rows: Sequence[Row],
        wanted: Sequence[LogitRow],
        exports: Mapping[str, Rows],
        *,
        masks: PlainMasks | None = None,
        until: str | None = None,
        observe: Observer | None = None,
    ) -> tuple[_Step, dict[str, Rows]]:
        """One pass of a program over ``rows`` with ids alone, and all its values."""
        tables = {row.slot: self.tables.of(row.slot, row.end) for row in rows}
        layout = StepLayout(tuple(rows), tables, self._cache, self._rows)
        states, sizes = self._states, self.sizes
        step = _Step(program.constants, layout, self._cache, states, tuple(wanted), masks, sizes)
        inputs: dict[str, Rows] = {
            "tokens": np.array([token for row in rows for token in row.tokens], np.int32),
            "positions": layout.positions(),
            "ends": layout.ends(),
            ROPE_POSITIONS: self._rope_positions.of(rows),
            "types": np.zeros(sum(len(row.tokens) for row in rows), np.int32),
            "logit_rows": layout.logit_rows(),
            **exports,
        }
        return step, interpret(program, inputs, self._weights, step, until=until, observe=observe)

    def _open_slots(self, plan: StepPlan) -> None:
        for opening in plan.opens:
            self._open(opening)
        for slot, token in plan.commits:
            self._states[slot].commit(token)
        self.prepare(plan)

    def _open(self, opening: SlotOpen) -> None:
        params, prompt, output = opening.params, opening.prompt, opening.output
        self._states[opening.slot] = SlotState(params, prompt, output, self.sizes.kept_drafts)
