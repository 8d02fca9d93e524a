"""An executor without a model: logits are a hash of everything that the token can see.

What a token sees is read through the block tables from per-block storage that earlier steps wrote,
as attention would. A wrong table, a lost move, two owners of one block or a stale entry therefore
changes the answers, and thousands of steps run per second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, count

import numpy as np
from numpy.typing import NDArray

from kvasir.core.drawn import Drawn
from kvasir.core.groups import NO_BLOCK, Tables
from kvasir.core.plan import Copy, Move, Row, RowOutput, SlotOpen, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.checker import PlanChecker
from kvasir.exec.checks import check_plan, need
from kvasir.exec.drafting import DraftRow, Settled, Siblings, drafts_of, followed_rows
from kvasir.exec.local import LocalExecutor
from kvasir.exec.masks import PlainMasks
from kvasir.exec.pooling import PooledSlots, StepPool
from kvasir.exec.rows import LogitRow, depths, logit_rows, with_ids
from kvasir.exec.taken import StateSlots, StateStep
from kvasir.exec.token_types import TokenTypes
from kvasir.sampling.classical import Role
from kvasir.sampling.masks import Bits
from kvasir.sampling.reference import SlotState, likeliest, sample_row

U64 = NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
VECTOR_SIZE = 16
"""Of the vectors of requests that pool, where the vocabulary has as many words."""
LOGIT_RANGE = 8.0
"""Logits are uniform in [-LOGIT_RANGE / 2, LOGIT_RANGE / 2)."""


class _Past:
    """What the tokens of a row see of a group's entries, as sums."""

    def __init__(self, row: Row, before: int) -> None:
        self._row = row
        self._before = before
        self._sums: list[int] = []

    def seen(self, i: int) -> int:
        """Of all entries that token ``i`` sees, but for its own."""
        parent = self._parent(i)
        return self._before if parent < 0 else self._sums[parent]

    def add(self, entry: int) -> None:
        """Of the next token."""
        self._sums.append(self.seen(len(self._sums)) + entry)

    def _parent(self, i: int) -> int:
        return self._row.parents[i] if self._row.parents else i - 1


class _Window(_Past):
    """The same where a token sees the last ``window`` positions alone."""

    def __init__(self, row: Row, before: list[int], positions: list[int], window: int) -> None:
        super().__init__(row, 0)
        self._last = [0, *accumulate(reversed(before))]
        """[n]: of the last n entries before the row."""
        self._positions = positions
        self._window = window
        self._entries: list[int] = []

    def seen(self, i: int) -> int:
        lowest = max(0, self._positions[i] - self._window + 1)
        total = self._last[max(0, self._row.start - lowest)]
        node = self._parent(i)
        while node >= 0 and self._positions[node] >= lowest:
            total += self._entries[node]
            node = self._parent(node)
        return total

    def add(self, entry: int) -> None:
        self._entries.append(entry)


class _Accumulated(_Past):
    """The state after each token, which alone is kept of those so far."""

    def add(self, entry: int) -> None:
        self.states.append(_mix((self.seen(len(self.states)) + _GOLDEN) ^ entry))

    @property
    def states(self) -> list[int]:
        return self._sums


class FakeExecutor(LocalExecutor[PlainMasks]):
    """``nonfinite``: seed of a request to the output index whose logits are NaN.

    ``seconds``: virtual time of a step, reported and not slept. ``is_checked``: a plan that breaks
    a promise is refused, instead of giving other answers. ``misses``: the executor drafts, with a
    program that has entries of its own, and sees one in so many contexts wrongly; 0: none.
    """

    new_masks = PlainMasks

    def __init__(
        self,
        sizes: EngineSizes,
        *,
        nonfinite: Mapping[int, int] | None = None,
        seconds: Callable[[StepPlan], float] | None = None,
        is_checked: bool = True,
        misses: int | None = None,
    ) -> None:
        super().__init__(sizes)
        self._nonfinite = dict(nonfinite or {})
        self._seconds = seconds
        self._misses = misses
        n_programs = 1 if misses is None else 2
        self._kv = [
            _mix_array(np.arange(n_programs * n * sizes.block_size, dtype=np.uint64)).reshape(
                n_programs, n, -1
            )
            for n in (group.n_blocks for group in sizes.groups)
        ]
        """Per group [programs, blocks, entries of a block]."""
        self._checker = PlanChecker(sizes, self.tables) if is_checked else None
        self._ids = np.arange(sizes.vocab_size, dtype=np.uint64) * np.uint64(_GOLDEN)
        self._states: dict[int, SlotState] = {}
        self._drawn = Drawn()
        self._pooled = PooledSlots()
        self._types = TokenTypes()
        self._sums: dict[int, int] = {}
        self._taken = StateSlots(sizes)
        self._rows: dict[int, StateStep] = {}
        """By slot, of the running plan."""
        self._kept: dict[int, list[int]] = {}
        """By slot the states after each token of the newest row that drafted."""

    def run(self, plan: StepPlan) -> StepResult:
        """Raises KvasirError when the plan breaks ``sizes`` or names what it may not."""
        self.tables.apply(plan)
        tables = self.tables.of_rows(plan)
        check_plan(plan, self.sizes, tables, self._states.keys(), self._drawn)
        if self._checker is not None:
            self._checker.begin(plan)
        self._types.open(plan)
        for opening in plan.opens:
            self._open(opening)
        for slot, token in plan.commits:
            self._states[slot].commit(token)
        self.prepare(plan)
        if self._checker is not None:
            self._checker.rows()
        taken = self._taken.begin(plan)
        self._rows = {row.slot: one for row, one in zip(plan.rows, taken, strict=True)}
        wanted = count()
        seen: list[int] = []
        outputs = tuple(
            output
            for row in plan.rows
            for output in self._run_row(row, tables[row.slot], wanted, seen)
        )
        vectors = self._pool(self._pooled.of(plan), seen)
        drafts, siblings = self._draft(plan, outputs)
        if self._checker is not None:
            self._checker.drew(outputs, drafts, siblings)
        self._taken.drew(plan, outputs)
        self._drawn = Drawn.by(plan, outputs, drafts, siblings)
        seconds = self._seconds(plan) if self._seconds else 0.0
        return StepResult(outputs, seconds, drafts=drafts, vectors=vectors, siblings=siblings)

    def _pool(self, step: StepPool, seen: Sequence[int]) -> tuple[bytes, ...]:
        """Vectors are a hash of all that the pooled tokens saw, and of where a second text
        begins."""
        sums = self._sums | {slot: self._types.second(slot) for slot in step.begun}
        for slot, token in zip(step.slots, step.tokens, strict=True):
            sums[slot] = _mix(sums[slot] + seen[token])
        self._sums = sums
        return tuple(self._floats(sums[slot], VECTOR_SIZE).tobytes() for slot, _ in step.ended)

    def _draft(
        self, plan: StepPlan, outputs: Sequence[RowOutput]
    ) -> tuple[tuple[tuple[int, ...], ...], Siblings]:
        asks = any(row.n_drafts for row in plan.rows)
        need(self._misses is not None or not asks, "a row asks for drafts: no draft program")
        if self._misses is None:
            return (), ()
        settled = Settled.by(*with_ids(plan, self._drawn), outputs)
        for row in followed_rows(plan, self._drawn, settled):
            self._write(row, self.tables.of(row.slot, row.end), row.tokens, program=1)
        width = self.sizes.draft_width
        return drafts_of(settled, self._draft_step, width=width) if asks else ((), ())

    def _draft_step(self, rows: Sequence[DraftRow]) -> list[list[int]]:
        return [self._draft_tokens(row, logits) for row, logits, _ in rows]

    def _draft_tokens(self, row: Row, wanted: LogitRow) -> list[int]:
        (seen,) = self._write(row, self.tables.of(row.slot, row.end), row.tokens, program=1)
        if self._misses and _mix(seen) % self._misses == 0:
            seen += 1
        state = self._states[row.slot]
        logits, role = self._logits(seen), Role(True, n_siblings=self.sizes.draft_width - 1)
        drawn = sample_row(logits, state, wanted.out_index, wanted.path, role=role)
        return [drawn.token, *(token for token, _ in drawn.top)]

    def read_block(self, group: int, block: int) -> bytes:
        """With what the checker knows of it."""
        marks = b"" if self._checker is None else self._checker.read_block(group, block)
        return bytes(self._kv[group][:, block]) + marks

    def write_block(self, group: int, block: int, data: bytes) -> None:
        kv = self._kv[group][:, block]
        kv[:] = np.frombuffer(data, np.uint64, kv.size).reshape(kv.shape)
        if self._checker is not None:
            self._checker.write_block(group, block, data[kv.nbytes :])

    def close(self) -> None:
        super().close()
        self._states.clear()

    def _open(self, opening: SlotOpen) -> None:
        params, prompt, output = opening.params, opening.prompt, opening.output
        self._states[opening.slot] = SlotState(params, prompt, output, self.sizes.kept_drafts)

    def move(self, move: Move) -> None:
        if self._checker is not None:
            self._checker.move(move)
        for group, kv in enumerate(self._kv):
            if self.sizes.groups[group].state_bytes:
                continue  # what rows draft is kept beside states
            src, dst = (self.tables.place(group, move.slot, i) for i in (move.src, move.dst))
            kv[0, *dst] = kv[0, *src]

    def copy(self, copy: Copy) -> None:
        if self._checker is not None:
            self._checker.copy(copy)
        for kv, src, dst in zip(self._kv, copy.src, copy.dst, strict=True):
            kv[:, dst, : copy.n_entries] = kv[:, src, : copy.n_entries]

    def _at(self, blocks: tuple[int, ...], index: int) -> tuple[int, int]:
        size = self.sizes.block_size
        return blocks[index // size], index % size

    def _run_row(
        self, row: Row, tables: Tables, wanted: Iterator[int], all_seen: list[int]
    ) -> list[RowOutput]:
        """``wanted``: counts the logit rows of the step. ``all_seen`` gets the hash of what each
        token sees."""
        tokens = self._drawn.ids(row.tokens)
        seen = self._write(row, tables, tokens)
        all_seen += seen
        return [
            self._sample(item, seen[item.token], None if self.masks is None else self.masks.wait(i))
            for item, i in zip(logit_rows(row), wanted, strict=False)
        ]

    def _write(
        self, row: Row, tables: Tables, tokens: tuple[int, ...], program: int = 0
    ) -> list[int]:
        """Write the row's entries; per token the hash of all it sees, itself included."""
        positions = [row.start + depth for depth in depths(row)]
        kvs = [kv[program] for kv in self._kv]
        pasts = [self._past(row, blocks, positions, g, kvs[g]) for g, blocks in enumerate(tables)]
        seen: list[int] = []
        for i, token in enumerate(tokens):
            context = sum(past.seen(i) for past in pasts)
            entry = _mix(context ^ _mix(token * _GOLDEN + positions[i]))
            for past, kv, blocks in zip(pasts, kvs, tables, strict=True):
                past.add(entry)
                if isinstance(past, _Accumulated):
                    if i < self._rows[row.slot].n_certain:
                        kv[blocks[(row.start + i) // self.sizes.block_size]] = past.states[i]
                else:
                    kv[self._at(blocks, row.start + i)] = entry
            seen.append((context + entry) & _MASK)
        for past in pasts:
            if isinstance(past, _Accumulated) and self._rows[row.slot].n_certain < len(tokens):
                self._kept[row.slot] = past.states
        return seen

    def _past(
        self, row: Row, blocks: tuple[int, ...], positions: list[int], group: int, kv: U64
    ) -> _Past:
        window = self.sizes.groups[group].window
        if self.sizes.groups[group].state_bytes:
            taken, size = self._rows[row.slot], self.sizes.block_size
            for at, node in enumerate(taken.path, taken.at):
                kv[blocks[at // size]] = self._kept[row.slot][node]
            return _Accumulated(
                row, int(kv[blocks[(row.start - 1) // size], 0]) if row.start else 0
            )
        n_gone = blocks.count(NO_BLOCK)
        first = n_gone * self.sizes.block_size
        n_blocks = -(-row.start // self.sizes.block_size)
        before = kv[list(blocks[n_gone:n_blocks])].reshape(-1)[: row.start - first]
        if not window:
            return _Past(row, int(np.add.reduce(before, dtype=np.uint64)))
        return _Window(row, before.tolist(), positions, window)

    def _sample(self, row: LogitRow, seen: int, mask: Bits | None) -> RowOutput:
        state = self._states[row.slot]
        logits = self._logits(seen)
        if self._nonfinite.get(state.params.seed) == row.out_index:
            logits[:] = np.nan
        path, drafted = self._drawn.ids(row.path), self._drawn.ids(row.drafted)
        role = Role(drafted=drafted[0] if drafted else -1)
        drawn = sample_row(logits, state, row.out_index, path, row.target, mask, role)
        digest = int.from_bytes(blake2b(logits.tobytes(), digest_size=8).digest(), "little")
        candidates = likeliest(logits, self.sizes.n_candidates)
        return RowOutput(drawn.token, drawn.logprob, drawn.top, drawn.rank, digest, candidates)

    def _logits(self, seen: int) -> NDArray[np.float32]:
        """float32 [vocab_size]."""
        return self._floats(seen, self.sizes.vocab_size)

    def _floats(self, seen: int, n: int) -> NDArray[np.float32]:
        bits = _mix_array(self._ids[:n] ^ np.uint64(_mix(seen)))
        unit = (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return (unit - np.float32(0.5)) * np.float32(LOGIT_RANGE)


def _mix(value: int) -> int:
    """The finaliser of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom generators)."""
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _mix_array(values: U64) -> U64:
    """``_mix`` of every element."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
