"""Draft steps: what follows a plan's rows, one token of a draft program at a time.

What the native core does inside its one call, for executors in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import structs

from kvasir.core.plan import Row, RowOutput
from kvasir.exec.rows import LogitRow
from kvasir.sched.rows import accepted, is_draft


class DraftRow(NamedTuple):
    """One token of a request in a draft step."""

    row: Row
    logits: LogitRow
    after: int
    """Index in the plan's tokens of the newest one that the target computed: exports hold its
    row."""


DraftStep = Callable[[Sequence[DraftRow]], Sequence[int]]
"""What the draft program draws for each; negative where it cannot."""


class _DraftChain(msgspec.Struct, frozen=True):
    """The newest token of a request, which the target drew, and what was drafted behind it."""

    row: Row
    last: LogitRow
    """That drew the newest token."""
    after: int
    shift: int
    """Of a head, whose entries are one place before those of a draft model: 1."""
    tokens: list[int]

    def next(self) -> DraftRow:
        n, last = len(self.tokens), self.last
        start = self.row.start + last.token + n - self.shift
        row = Row(self.row.slot, start, (max(0, self.tokens[-1]),))
        path = (*last.path, *(max(0, token) for token in self.tokens))
        wanted = LogitRow(row.slot, 0, last.out_index + n, path, -1, drafts=True)
        return DraftRow(row, wanted, self.after)


def drafts_of(
    rows: Sequence[Row],
    wanted: Sequence[LogitRow],
    outputs: Sequence[RowOutput],
    step: DraftStep,
    shift: int = 0,
) -> tuple[tuple[int, ...], ...]:
    """The drafts of a ``StepResult``. ``rows`` of a plan and its logit rows ``wanted``, all
    references resolved; ``outputs``: what the target drew. For plans in which a row asks.
    ``shift``: 1 of a head, whose entries are made of a token and the one after it."""
    chains = _chains(rows, wanted, outputs, shift)
    while going := [x for x in chains if len(x.tokens) <= x.row.n_drafts]:
        for chain, token in zip(going, step([x.next() for x in going]), strict=True):
            chain.tokens.append(-1 if min(token, chain.tokens[-1]) < 0 else token)
    return tuple(tuple(chain.tokens[1:]) for chain in chains)


def followed_by(
    rows: Sequence[Row], outputs: Sequence[RowOutput], successors: Sequence[int]
) -> list[Row]:
    """``rows`` with the token after each in its place, by which a head makes its entries: what was
    drawn or scored there, elsewhere the next of the row, and behind its last one that of
    ``successors``; 0 where nobody knows it. Without logits."""
    found, first = [], 0
    for row, after in zip(rows, successors, strict=True):
        tokens, begin = [*row.tokens[1:], after], len(row.tokens) - row.n_logits
        for j in range(row.n_logits):
            scored = row.targets[j] if row.targets else -1
            tokens[begin + j] = scored if scored >= 0 else outputs[first + j].token
        first += row.n_logits
        known = tuple(max(0, token) for token in tokens)
        found.append(structs.replace(row, tokens=known, n_logits=0, targets=()))
    return found


def _chains(
    rows: Sequence[Row], wanted: Sequence[LogitRow], outputs: Sequence[RowOutput], shift: int
) -> list[_DraftChain]:
    chains = []
    draw = first = 0
    for row in rows:
        own = tuple(outputs[draw : draw + row.n_logits])
        if row.n_drafts:
            n = len(accepted(row, own)) if is_draft(row) else 0
            last = wanted[draw + n]
            chains.append(_DraftChain(row, last, first + last.token, shift, [own[n].token]))
        else:
            nothing = LogitRow(row.slot, 0, 0, (), -1)
            chains.append(_DraftChain(row, nothing, first, shift, [0]))
        draw += row.n_logits
        first += len(row.tokens)
    return chains
