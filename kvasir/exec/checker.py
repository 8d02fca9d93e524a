"""The plan checker: which tokens every KV entry stands for, over all plans of an executor.

Whoever reads an entry vouches for it: a row for the tokens before it, a copy for those of the row
that goes on in its target. So a block that was written between being vouched for and being read
shows when it is read, however many plans lie between, and a block that nobody wrote shows as well.
What goes to disk takes with it what it stands for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from kvasir.core.drawn import Drawn
from kvasir.core.groups import Tables
from kvasir.core.plan import Copy, Move, Row, RowOutput, StepPlan
from kvasir.core.sizes import EngineSizes
from kvasir.exec.base import BlockStore
from kvasir.exec.checks import need
from kvasir.exec.order import before_rows
from kvasir.exec.rows import depths
from kvasir.exec.tables import SlotTables
from kvasir.exec.taken import StateSlots, StateStep
from kvasir.sched.rows import accepted, is_draft

U64 = NDArray[np.uint64]

NOTHING = np.uint64(0)
"""Nobody wrote the entry."""


class PlanChecker:
    """Checks plans in the order in which they run; ``drew`` after each. Its entries are marks."""

    def __init__(self, sizes: EngineSizes, tables: SlotTables | None = None) -> None:
        """``tables``: those of the executor that it belongs to."""
        self._groups = sizes.groups
        self._size = sizes.block_size
        self._tables = tables or SlotTables(sizes)
        self._marks = [np.zeros((group.n_blocks, self._size), np.uint64) for group in self._groups]
        """Per entry the mark of the sequence that ends with it."""
        self._slots: dict[int, U64] = {}
        """Per slot the marks of its known tokens."""
        self._states = StateSlots(sizes)
        self._plan: StepPlan | None = None
        self._drawn = Drawn()
        self._writers: dict[tuple[int, int], str] = {}
        """(group, block) to what writes it in the plan that is checked."""

    def check(self, plan: StepPlan, store: BlockStore | None = None) -> None:
        """Raises KvasirError naming the first broken promise. ``store``: of the marks of blocks."""
        self._tables.apply(plan)
        self.begin(plan)
        before_rows(plan, self, store)
        self.rows()

    def begin(self, plan: StepPlan) -> None:
        """What ``check`` does, for an executor whose ``before_rows`` calls this checker."""
        self._plan = plan
        self._writers = {}
        for opening in plan.opens:
            self._slots[opening.slot] = marks_of((*opening.prompt, *opening.output))

    def rows(self) -> None:
        """Of the plan that was begun, in which all that comes before them is done."""
        if self._plan is None:
            return
        tables = self._tables.of_rows(self._plan)
        taken = self._states.begin(self._plan)
        for row, one in zip(self._plan.rows, taken, strict=True):
            self._read(row, tables[row.slot], one)
        for row, one in zip(self._plan.rows, taken, strict=True):
            self._write(row, tables[row.slot], one)

    def drew(
        self,
        outputs: Sequence[RowOutput],
        drafts: Sequence[tuple[int, ...]] = (),
        siblings: Sequence[tuple[tuple[int, ...], ...]] = (),
    ) -> None:
        """The checked plan has run: which drafts were right is known. ``drafts`` and ``siblings``:
        new ones, as in a ``StepResult``."""
        if self._plan is None:
            return
        first = 0
        for row in self._plan.rows:
            own = tuple(outputs[first : first + row.n_logits])
            first += row.n_logits
            if is_draft(row):
                row = structs.replace(row, tokens=self._drawn.ids(row.tokens))
                path = (0, *accepted(row, own))
                known = self._slots[row.slot]
                tokens = [row.tokens[node] for node in path]
                self._slots[row.slot] = _go_on(known[: row.start], tokens)
        self._states.drew(self._plan, outputs)
        self._drawn = Drawn.by(self._plan, outputs, drafts, siblings)

    def read_block(self, group: int, block: int) -> bytes:
        """What the entries of a block stand for."""
        return bytes(self._marks[group][block])

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """A load fills the block with entries that stand for what ``read_block`` gave."""
        self._claim(group, block, "a load")
        marks = self._marks[group][block] = np.frombuffer(data, np.uint64)
        need(bool(marks.all()), f"nothing was loaded to block {block}")

    def move(self, move: Move) -> None:
        for g, marks in enumerate(self._marks):
            if self._groups[g].state_bytes:
                continue
            source, target = (self._tables.place(g, move.slot, i) for i in (move.src, move.dst))
            need(marks[source] != NOTHING, f"{move} reads an entry that nobody wrote")
            writer = self._writers.get((g, target[0]))
            need(writer is None, f"{writer} and a move write block {target[0]}")
            marks[target] = marks[source]

    def copy(self, copy: Copy) -> None:
        for g, marks in enumerate(self._marks):
            src, dst = copy.src[g], copy.dst[g]
            part = marks[src, : copy.n_entries].copy()
            need(bool(part.all()), f"{copy} reads entries that nobody wrote")
            self._claim(g, dst, "a copy")
            marks[dst] = NOTHING
            marks[dst, : copy.n_entries] = part

    def _claim(self, group: int, block: int, writer: str) -> None:
        other = self._writers.get((group, block))
        both = f"{other} and {'another' + writer[1:] if other == writer else writer}"
        need(other is None, f"{both} write block {block} of group {group}")
        self._writers[group, block] = writer

    def _read(self, row: Row, tables: Tables, taken: StateStep) -> None:
        """All that the first token sees, which the others see too or more of it."""
        known, size = self._slots.get(row.slot), self._size
        what = f"slot {row.slot} goes on at {row.start}"
        if known is None or row.start > len(known):
            need(False, f"{what} of none" if known is None else f"{what}, {len(known)} are known")
            return
        if not row.start:
            return
        for g, (group, marks, blocks) in enumerate(
            zip(self._groups, self._marks, tables, strict=True)
        ):
            first = max(0, row.start - group.window + 1) if group.window else 0
            stop = taken.at if group.state_bytes else row.start
            first = stop - 1 if group.state_bytes else first
            if first == stop or not stop:
                continue
            last = (stop - 1) // size
            found = marks[list(blocks[first // size : last + 1])].reshape(-1)
            found = found[first % size :][: stop - first]
            wrong = np.flatnonzero(found != known[first:stop])
            if len(wrong):
                at = first + int(wrong[0])
                self._refuse(row, at, g, blocks[at // size], is_written=bool(found[wrong[0]]))

    def _refuse(self, row: Row, at: int, group: int, block: int, *, is_written: bool) -> None:
        what = "stands for other tokens" if is_written else "was never written"
        writer = self._writers.get((group, block))
        by = f"; {writer} of this plan wrote it" if writer else ""
        need(False, f"slot {row.slot} reads entry {at} in block {block}, which {what}{by}")

    def _write(self, row: Row, tables: Tables, taken: StateStep) -> None:
        size, end = self._size, row.start + len(row.tokens)
        for g, blocks in enumerate(tables):
            for i in range(row.start // size, -(-row.end // size)):
                writer = self._writers.get((g, blocks[i]))
                is_own = writer == "a copy" and i * size <= row.start
                need(not writer or is_own, f"{writer} and a row write block {blocks[i]}")
        known = self._slots[row.slot]
        new = _marks_after(known[: row.start], row, self._drawn.ids(row.tokens))
        if not row.parents:
            told = known[row.start : end]
            need(
                is_draft(row) or bool((told == new[: len(told)]).all()),
                f"slot {row.slot} computes other tokens from {row.start} on than it was opened for",
            )
            if len(known) < end and not is_draft(row):
                self._slots[row.slot] = np.concatenate((known[: row.start], new))
        for group, marks, blocks in zip(self._groups, self._marks, tables, strict=True):
            held = np.asarray(blocks)
            places = np.arange(row.start, end)
            if group.state_bytes:
                need(taken.at + len(taken.path) == row.start, f"{row} leaves a gap in a state")
                before = known[taken.at : row.start]
                marked = np.concatenate((before, new[: taken.n_certain]))
                for at, mark in enumerate(marked, taken.at):
                    marks[held[at // size]] = mark
            else:
                marks[held[places // size], places % size] = new
                drafted = np.arange(end, row.end)
                marks[held[drafted // size], drafted % size] = NOTHING


def marks_of(tokens: Sequence[int]) -> U64:
    """Per token the mark of the sequence that ends with it: equal for equal sequences alone."""
    return _go_on(np.zeros(0, np.uint64), tokens)


def _go_on(before: U64, tokens: Sequence[int]) -> U64:
    """``before``, and the marks of the tokens that follow."""
    ids = np.asarray(tokens, np.uint64)
    mixed = _mixed(ids, np.arange(len(before), len(before) + len(ids), dtype=np.uint64))
    base = before[-1] if len(before) else NOTHING
    return np.concatenate((before, np.cumsum(mixed, dtype=np.uint64) + base))


def _marks_after(before: U64, row: Row, tokens: Sequence[int]) -> U64:
    """Marks of the row's tokens, of which each follows its parent."""
    if not row.parents:
        return _go_on(before, tokens)[len(before) :]
    positions = np.array(depths(row), np.uint64) + np.uint64(row.start)
    mixed = _mixed(np.array(tokens, np.uint64), positions)
    marks = np.zeros(len(tokens), np.uint64)
    for i, parent in enumerate(row.parents):
        above = marks[parent] if parent >= 0 else (before[-1] if len(before) else NOTHING)
        marks[i : i + 1] = mixed[i : i + 1] + above
    return marks


def _mixed(tokens: U64, positions: U64) -> U64:
    """The finaliser of SplitMix64 over token and position; never 0 in all likelihood."""
    values = tokens * np.uint64(0x9E3779B97F4A7C15) + positions + np.uint64(1)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
