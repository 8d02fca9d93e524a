"""Draft steps: what follows a plan's rows, one token of a draft program at a time.

What the native core does inside its one call, for executors in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec
from msgspec import structs

from kvasir.core.drawn import Drawn
from kvasir.core.plan import Row, RowOutput, StepPlan
from kvasir.exec.rows import LogitRow
from kvasir.sched.rows import accepted, is_draft


class DraftRow(NamedTuple):
    """One token of a request in a draft step."""

    row: Row
    logits: LogitRow
    after: int
    """Index in the settled step's tokens of the newest one that the target computed."""


DraftStep = Callable[[Sequence[DraftRow]], Sequence[Sequence[int]]]
"""What the draft program draws for each, the best first, and the next best behind it; a negative
token where it cannot."""
Siblings = tuple[tuple[tuple[int, ...], ...], ...]


class Settled(NamedTuple):
    """A step that was computed, in which each row is a chain: of a tree what the target drew of it
    is left, in its place."""

    rows: list[Row]
    wanted: list[LogitRow]
    outputs: list[RowOutput]
    kept: list[int]
    """Which tokens of the step these are."""

    @classmethod
    def by(
        cls, rows: Sequence[Row], wanted: Sequence[LogitRow], outputs: Sequence[RowOutput]
    ) -> Settled:
        """``rows`` of a plan and its logit rows ``wanted``, all references resolved; ``outputs``:
        what the target drew."""
        found = cls([], [], [], [])
        draw = first = 0
        for row in rows:
            own = slice(draw, draw + row.n_logits)
            nodes: Sequence[int] = range(len(row.tokens))
            if row.parents:
                nodes = (0, *accepted(row, tuple(outputs[own])))
            found._add(row, wanted[own], outputs[own], nodes, first)
            draw, first = own.stop, first + len(row.tokens)
        return found

    def _add(
        self,
        row: Row,
        wanted: Sequence[LogitRow],
        outputs: Sequence[RowOutput],
        nodes: Sequence[int],
        first: int,
    ) -> None:
        self.kept.extend([first + node for node in nodes])
        if not row.parents:
            self.rows.append(row)
            self.wanted.extend(wanted)
            self.outputs.extend(outputs)
            return
        tokens = tuple([row.tokens[node] for node in nodes])
        self.rows.append(structs.replace(row, tokens=tokens, parents=(), n_logits=len(tokens)))
        self.wanted.extend([structs.replace(wanted[node], token=i) for i, node in enumerate(nodes)])
        self.outputs.extend([outputs[node] for node in nodes])


class _DraftChain(msgspec.Struct, frozen=True):
    """The newest token of a request, which the target drew, and what was drafted behind it."""

    row: Row
    last: LogitRow
    """That drew the newest token."""
    after: int
    shift: int
    """Of a head, whose entries are one place before those of a draft model: 1."""
    tokens: list[int]
    others: list[Sequence[int]]
    """The next best in the place of each token but the first."""

    def next(self) -> DraftRow:
        n, last = len(self.tokens), self.last
        start = self.row.start + last.token + n - self.shift
        row = Row(self.row.slot, start, (max(0, self.tokens[-1]),))
        path = (*last.path, *(max(0, token) for token in self.tokens))
        wanted = LogitRow(row.slot, 0, last.out_index + n, path, -1, drafts=True)
        return DraftRow(row, wanted, self.after)


def drafts_of(
    settled: Settled, step: DraftStep, shift: int = 0, width: int = 1
) -> tuple[tuple[tuple[int, ...], ...], Siblings]:
    """The drafts and siblings of a ``StepResult``, in which a row asks for drafts. ``shift``: 1 of
    a head, whose entries are made of a token and the one after it; ``width``: tokens that are
    drafted in each place."""
    chains = _chains(settled.rows, settled.wanted, settled.outputs, shift)
    while going := [x for x in chains if len(x.tokens) <= x.row.n_drafts]:
        for chain, (token, *others) in zip(going, step([x.next() for x in going]), strict=True):
            is_lost = min(token, chain.tokens[-1]) < 0
            chain.tokens.append(-1 if is_lost else token)
            chain.others.append([] if is_lost else others)
    drafts = tuple(tuple(chain.tokens[1:]) for chain in chains)
    return drafts, tuple(_ranked(chain, width) for chain in chains) if width > 1 else ()


def _ranked(chain: _DraftChain, width: int) -> tuple[tuple[int, ...], ...]:
    """By rank the others of each place; -1 where there is none."""
    return tuple(
        tuple(own[rank] if rank < len(own) else -1 for own in chain.others)
        for rank in range(width - 1)
    )


def followed_rows(plan: StepPlan, drawn: Drawn, settled: Settled) -> list[Row]:
    """What the draft program takes in first: rows without references, and without logits."""
    if plan.follows is None:
        rows = settled.rows
    else:
        rows = [structs.replace(row, tokens=drawn.ids(row.tokens)) for row in plan.follows]
        trees = {x.slot: x for x in plan.rows if x.parents and x.n_drafts}
        paths = [row for row in settled.rows if row.slot in trees]
        rows = _with_paths(rows, paths)
    return [structs.replace(row, n_logits=0, targets=(), n_drafts=0) for row in rows]


def _with_paths(rows: Sequence[Row], paths: Sequence[Row]) -> list[Row]:
    """``rows``, and behind them what was drawn of trees: all but the first tokens of ``paths``."""
    found = {row.slot: row for row in rows}
    for path in paths:
        own = found.get(path.slot, Row(path.slot, path.start + 1, ()))
        if tokens := (*own.tokens, *path.tokens[1:]):
            found[path.slot] = structs.replace(own, tokens=tokens)
    return list(found.values())


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
            chains.append(_DraftChain(row, last, first + last.token, shift, [own[n].token], []))
        else:
            nothing = LogitRow(row.slot, 0, 0, (), -1)
            chains.append(_DraftChain(row, nothing, first, shift, [0], []))
        draw += row.n_logits
        first += len(row.tokens)
    return chains
