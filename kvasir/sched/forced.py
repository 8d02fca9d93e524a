"""Rows of tokens that a constraint forces."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.core.plan import Row
from kvasir.sched.request import Request
from kvasir.sched.rows import chunk_row, draft_row
from kvasir.speculate.base import Draft


def forced_rows(n_spare: int, ready: Sequence[Request], n_drawn: int) -> dict[Request, Row]:
    """Of those that have more to compute than their newest token. ``n_spare``: tokens of the budget
    that are left when everybody has computed one. ``n_drawn``: most tokens of a row that have to be
    drawn each."""
    rows: dict[Request, Row] = {}
    for request in [x for x in ready if x.is_jumping]:
        row = _row(request, n_spare, n_drawn)
        if row is not None:
            n_spare -= len(row.tokens) - 1
            request.table.grow(row.end)
            rows[request] = row
    return rows


def _row(request: Request, n_spare: int, n_drawn: int) -> Row | None:
    n_most = min(1 + n_spare, request.table.room() - request.n_computed)
    if request.n_left > 1:
        return chunk_row(request, min(request.n_left, n_most))
    n_left = request.max_outputs - request.n_drawn - 1
    tokens = request.forced_next[: max(0, min(n_most - 1, n_left, n_drawn))]
    return draft_row(request, Draft(tokens)) if tokens else None
