"""What the logit rows of a plan's row are: shared by every executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.plan import Row


@dataclass(frozen=True, slots=True)
class LogitRow:
    slot: int
    index: int
    """Index in the row's tokens of the token whose logits these are."""
    out_index: int
    """Output index that is drawn; meaningless for a scored row."""
    path: tuple[int, ...]
    """Output tokens before this row that the sampler's state does not count yet."""
    target: int
    """Token to score; -1 draws."""


def resolve_tokens(row: Row, drawn: Sequence[int]) -> tuple[int, ...]:
    """The row's tokens with references filled in from ``drawn``, the previous plan's logit rows.

    A reference to a row that drew nothing (its logits were not finite) becomes token 0: its request
    has failed by the time this row is committed, and the row is dropped.
    """
    return tuple(token if token >= 0 else max(0, drawn[-1 - token]) for token in row.tokens)


def depths(row: Row) -> tuple[int, ...]:
    """Per token its depth below the first: its logical position is ``row.start`` plus that."""
    if not row.parents:
        return tuple(range(len(row.tokens)))
    found: list[int] = []
    for parent in row.parents:
        found.append(0 if parent < 0 else found[parent] + 1)
    return tuple(found)


def logit_rows(row: Row, tokens: Sequence[int], n_committed: int) -> tuple[LogitRow, ...]:
    """The logit rows of ``row``, whose resolved tokens are ``tokens``.

    ``n_committed``: outputs that the slot's sampler state counts, from SlotOpen and the commits since.
    """
    first = len(tokens) - row.n_logits
    below = depths(row)
    rows: list[LogitRow] = []
    for i in range(row.n_logits):
        index = first + i
        out_index = row.out_index + below[index] - below[first]
        target = row.targets[i] if row.targets else -1
        n_path = max(0, out_index - n_committed) if target < 0 else 0
        rows.append(LogitRow(row.slot, index, out_index, _path(row, tokens, index, n_path), target))
    return tuple(rows)


def _path(row: Row, tokens: Sequence[int], index: int, n: int) -> tuple[int, ...]:
    """The last ``n`` tokens up to ``index``, ancestors first."""
    path: list[int] = []
    for _ in range(n):
        path.append(tokens[index])
        index = row.parents[index] if row.parents else index - 1
    return tuple(reversed(path))
