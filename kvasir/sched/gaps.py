"""Which entries a head lacks: it reads along while its drafts pay, and rests when they do not.

It cannot read later what it has missed, so a request with a step in which it rested is drafted for
no more, nor is who shares such a block. Entries that are missing would make worse drafts, never
other answers; but they may be those of a block's owner before, about whom nobody may learn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvasir.core.plan import Copy, Row, Transfer
from kvasir.kv.radix import Node
from kvasir.sched.request import Request
from kvasir.sched.rows import is_draft

IDLE_STEPS = 32
"""In which nothing was asked for, after which it rests; not while it reads a new prompt."""


class _SeenBlocks(NamedTuple):
    """At the blocks of a request."""

    n_preempted: int
    n_blocks: int
    """That were complete."""
    node: Node | None
    """What the cache knew of them."""
    is_whole: bool
    """Whether it has all entries of them."""


class HeadGaps:
    """A mirror of what plans do to the entries of a head without windows: in the blocks of the
    group that keeps everything, which is the first."""

    def __init__(self, block_size: int) -> None:
        self._size = block_size
        self._blocks: set[int] = set()
        """With entries that it lacks."""
        self._has_rested = False
        self._n_idle = 0
        self._known: dict[Request, _SeenBlocks] = {}

    def has_all(self, request: Request) -> bool:
        """Entries of all that is computed."""
        if not self._has_rested:
            return True
        n_blocks, node = request.n_computed // self._size, request.vouched.node
        known = self._known.get(request)
        if known is not None and known.n_preempted == request.n_preempted:
            # when the cache learned of blocks, it may have put an equal one of another in the place
            # of one: some steps after that was computed
            is_seen = known.n_blocks == n_blocks and known.node is node
            if is_seen or not known.is_whole:
                return known.is_whole
        held = request.table.held(0)[: -(-request.n_computed // self._size)]
        is_whole = self._blocks.isdisjoint(held)
        self._known[request] = _SeenBlocks(request.n_preempted, n_blocks, node, is_whole)
        return is_whole

    def take(
        self,
        owners: Sequence[Request],
        rows: Sequence[Row],
        copies: Sequence[Copy],
        loads: Sequence[Transfer],
    ) -> tuple[()] | None:
        """What the head takes in of the plan of ``rows``: all (None), or nothing."""
        is_read = self._is_read(owners, rows)
        self._has_rested = self._has_rested or not is_read
        if not self._has_rested:
            return None
        self._blocks.update(load.block for load in loads if load.group == 0)
        for copy in copies:
            (self._blocks.add if copy.src[0] in self._blocks else self._blocks.discard)(copy.dst[0])
        for request, row in zip(owners, rows, strict=True):
            begin, end = row.start // self._size, -(-row.end // self._size)
            if is_read:
                fresh = -(-row.start // self._size)
                self._blocks.difference_update(request.table.at(i)[0] for i in range(fresh, end))
            else:
                self._blocks.update(request.table.at(i)[0] for i in range(begin, end))
                node = request.vouched.node
                self._known[request] = _SeenBlocks(request.n_preempted, begin, node, is_whole=False)
        return None if is_read else ()

    def ended(self, request: Request) -> None:
        self._known.pop(request, None)

    def _is_read(self, owners: Sequence[Request], rows: Sequence[Row]) -> bool:
        if any([row.n_drafts for row in rows]):
            self._n_idle = 0
            return True
        if any([_reads(x, row) for x, row in zip(owners, rows, strict=True)]):
            return True
        self._n_idle += 1
        return self._n_idle <= IDLE_STEPS


def _reads(request: Request, row: Row) -> bool:
    """A prompt, of which the cache may have left one token, or what was given up before."""
    return row.start < request.n_prompt or (len(row.tokens) > 1 and not is_draft(row))
