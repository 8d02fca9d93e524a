"""From a request's counters to one row of a plan."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.core.plan import Move, Row, RowOutput
from kvasir.sched.request import Request
from kvasir.speculate.base import Draft


def chunk_row(request: Request, n_tokens: int) -> Row:
    """The next ``n_tokens`` known tokens: draws after the last, unless they are pooled, and scores
    the prompt if wanted."""
    start, n_drawn = request.n_computed, request.n_drawn
    end = start + n_tokens
    is_last = end == request.n_prompt + n_drawn and n_drawn < request.max_outputs
    is_drawing = is_last and request.asked.pooling is None
    targets = _targets(request, start, end)
    if targets and is_drawing:
        targets = (*targets, -1)
    n_logits = len(targets) or int(is_drawing)
    return Row(
        slot=request.slot,
        start=start,
        tokens=request.named(start, end),
        n_logits=n_logits,
        out_index=n_drawn - (n_logits - 1) if is_drawing else 0,
        targets=targets,
    )


def _targets(request: Request, start: int, end: int) -> tuple[int, ...]:
    """The successors of the prompt tokens in [start, end) that are not scored yet."""
    if not request.is_scoring:
        return ()
    stop = min(end, request.n_prompt - 1)
    return tuple(request.tokens[max(start, request.prefill.n_scored) + 1 : stop + 1])


def draft_row(request: Request, draft: Draft) -> Row:
    """The newest token and what may follow it, one logit row for each; what the executor is to
    draft behind them."""
    start, n_tokens = request.n_computed, 1 + len(draft.tokens)
    return Row(
        slot=request.slot,
        start=start,
        tokens=(*request.named(start, start + 1), *draft.tokens),
        n_logits=n_tokens,
        out_index=request.n_drawn,
        parents=(-1, *(parent + 1 for parent in draft.parents)) if draft.parents else (),
        n_drafts=draft.n_asked,
        n_sampled=draft.n_sampled,
    )


def forced_rows(n_spare: int, ready: Sequence[Request], n_drawn: int) -> dict[Request, Row]:
    """Of tokens that a constraint forces, of those that have more to compute than their newest one.
    ``n_spare``: tokens of the budget that are left when everybody has computed one. ``n_drawn``:
    most tokens of a row that have to be drawn each."""
    rows: dict[Request, Row] = {}
    for request in [x for x in ready if x.masked.is_jumping]:
        row = _forced_row(request, n_spare, n_drawn)
        if row is not None:
            n_spare -= len(row.tokens) - 1
            request.table.grow(row.end)
            rows[request] = row
    return rows


def _forced_row(request: Request, n_spare: int, n_drawn: int) -> Row | None:
    n_most = min(1 + n_spare, request.table.room() - request.n_computed)
    if request.n_left > 1:
        return chunk_row(request, min(request.n_left, n_most))
    n_left = request.max_outputs - request.n_drawn - 1
    tokens = request.forced_next[: max(0, min(n_most - 1, n_left, n_drawn))]
    return draft_row(request, Draft(tokens)) if tokens else None


def gives_vector(request: Request, row: Row) -> bool:
    """It ends a prompt that is pooled."""
    return request.asked.pooling is not None and row.end == request.n_prompt


def first_draw(row: Row) -> int:
    """Output index of the first token that ``row`` draws; -1: none."""
    if not row.n_logits or (row.targets and row.targets[-1] >= 0):
        return -1
    return row.out_index + (row.n_logits - 1 if row.targets else 0)


def is_draft(row: Row) -> bool:
    """More than one logit row, and all draw."""
    return row.n_logits > 1 and not row.targets


def accepted(row: Row, outputs: tuple[RowOutput, ...]) -> tuple[int, ...]:
    """Indices in ``row.tokens`` of the drafted tokens that the target itself drew, root to leaf.

    A token is accepted when it equals what its parent's logit row drew, so that a draft cannot
    change an answer.
    """
    parents = row.parents or tuple(range(-1, len(row.tokens) - 1))
    children = {(parents[i], row.tokens[i]): i for i in range(1, len(row.tokens))}
    path: list[int] = []
    node = 0
    while (child := children.get((node, outputs[node].token))) is not None:
        path.append(child)
        node = child
    return tuple(path)


def moves_of(row: Row, path: tuple[int, ...]) -> tuple[Move, ...]:
    """Copies that bring an accepted path to consecutive storage; none for a chain.

    Sources lie at or past their destinations and ascend, so that applying them in order is safe.
    """
    return tuple(
        Move(row.slot, row.start + node, row.start + depth)
        for depth, node in enumerate(path, start=1)
        if node != depth
    )
