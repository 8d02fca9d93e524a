"""What the logit rows of a plan's row are: shared by every executor."""

from __future__ import annotations

import msgspec
from msgspec import structs
from msgspec.structs import replace

from kvasir.core.drawn import Drawn
from kvasir.core.plan import Row, StepPlan


class LogitRow(msgspec.Struct, frozen=True):
    slot: int
    token: int
    """Index in the row's tokens of the token whose logits these are."""
    out_index: int
    """Output index that is drawn; meaningless for a scored row."""
    path: tuple[int, ...]
    """Outputs before this row that the sampler's state does not count: ids, or references."""
    target: int
    """Token to score; -1 draws."""
    drafted: tuple[int, ...] = ()
    """One, an id or a reference: what was drawn of this output from a distribution that is kept."""
    drafts: bool = False
    """It draws for a draft program."""


def depths(row: Row) -> tuple[int, ...]:
    """Per token its depth below the first: its logical position is ``row.start`` plus that."""
    if not row.parents:
        return tuple(range(len(row.tokens)))
    found: list[int] = []
    for parent in row.parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return tuple(found)


def logit_rows(row: Row) -> tuple[LogitRow, ...]:
    """The logit rows of ``row``, in order.

    The path of the first is empty, or the token itself when that is a reference: its commit comes
    with a later plan. A deeper one adds the drafted tokens between. Scored rows need no path.
    """
    first = len(row.tokens) - row.n_logits
    below = depths(row)
    rows: list[LogitRow] = []
    for i, token in enumerate(range(first, len(row.tokens))):
        path = () if row.targets else _path(row, token, first)
        out_index = row.out_index + below[token] - below[first]
        target = row.targets[i] if row.targets else -1
        drafted = row.tokens[token + 1 : token + 2] if i < row.n_sampled else ()
        rows.append(LogitRow(row.slot, token, out_index, path, target, drafted))
    return tuple(rows)


def with_ids(plan: StepPlan, drawn: Drawn) -> tuple[list[Row], list[LogitRow]]:
    """The rows of a plan and their logit rows, without references."""
    rows = [structs.replace(row, tokens=drawn.ids(row.tokens)) for row in plan.rows]
    wanted = [item for row in plan.rows for item in logit_rows(row)]
    return rows, [
        replace(item, path=drawn.ids(item.path), drafted=drawn.ids(item.drafted)) for item in wanted
    ]


def own_ends(plan: StepPlan) -> list[int]:
    """Per token of a plan where what it sees ends, when it sees nothing that follows it."""
    return [row.start + depth + 1 for row in plan.rows for depth in depths(row)]


def _path(row: Row, token: int, first: int) -> tuple[int, ...]:
    path: list[int] = []
    while token > first:
        path.append(row.tokens[token])
        token = row.parents[token] if row.parents else token - 1
    if row.tokens[first] < 0:
        path.append(row.tokens[first])
    return tuple(reversed(path))
