"""Which entries a draft program has: it takes tokens in when it is to draft behind them.

While nothing is drafted for a request nothing is computed for it, and its draft entries lag behind.
What is missing is taken in by chunks, beside the steps of the target. Entries that are wrong would
make worse drafts, never other answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvasir.core.plan import Copy, Row, Transfer
from kvasir.kv.radix import Node
from kvasir.sched.request import Request
from kvasir.sched.rows import draft_row
from kvasir.speculate.base import Draft


@dataclass(slots=True)
class _DraftEntries:
    """Of a request until it is preempted."""

    n_preempted: int
    n: int = 0
    """Of its first tokens, which are certain."""
    n_ahead: int = 0
    """Of those that were drafted to follow; the first is what the target drew."""
    last: int = -1
    """Block of the last of these, where that is not complete; -1: nobody looked."""
    seen: Node | None = None
    """What the cache knew of the request's blocks when these were looked at."""


class Following:
    """A mirror of what plans do to the entries of a draft program without windows: in the blocks of
    the group that keeps everything, which is the first."""

    def __init__(self, block_size: int, max_tokens: int) -> None:
        """``max_tokens``: that it takes in within a step, at most."""
        self._size = block_size
        self._max_tokens = max_tokens
        self._room = self._left = 0
        """Tokens that it takes in within the plan in the making, as it pays and in all."""
        self._whole: set[int] = set()
        """Full blocks of which it has every entry."""
        self._entries: dict[Request, _DraftEntries] = {}
        self._rows: list[Row] = []
        """Of the plan in the making."""

    def begin(self, n_most: int) -> None:
        """A plan in which ``n_most`` tokens are taken in at most."""
        self._room, self._left = min(n_most, self._max_tokens), self._max_tokens

    def lag(self, request: Request) -> int:
        """Tokens that it has to take in before the newest one."""
        return max(0, request.n_computed - self._has(request))

    def follow(self, request: Request, draft: Draft) -> Draft:
        """Plans what it takes in of a request that is drafted for, and what is left of ``draft``:
        nothing is asked for behind tokens that it lacks."""
        start, has = request.n_computed, self._found(request)
        if draft.parents or draft.tokens != request.drafted[: len(draft.tokens)]:
            has = min(has, start + 1)  # what it has ahead is of its own drafts, not of another's
        row = draft_row(request, draft)
        # what the target draws of a tree it takes in behind its first token
        end = start + (1 if draft.parents else len(row.tokens))
        behind = draft.depth if draft.parents else 0
        if draft.n_asked:
            room = min(self._room, self._left - behind)
            stop = min(end, has + max(0, room))
            if stop > has:
                own = row.tokens[max(0, has - start) : max(0, stop - start)]
                tokens = (*request.tokens[has : min(start, stop)], *own)
                self._rows.append(Row(request.slot, has, tokens, n_logits=0))
                self._room -= len(tokens)
                self._left -= len(tokens)
                has = stop
            if has < end or room < 0:
                draft = replace(draft, n_asked=0)
        n_ahead = max(0, min(has, end) - start - 1)
        if draft.n_asked:
            n_ahead += behind
            self._left -= behind
        self._note(request, min(has, start + 1), n_ahead if draft.tokens else draft.n_asked)
        return draft

    def take(
        self,
        owners: Sequence[Request],
        rows: Sequence[Row],
        copies: Sequence[Copy],
        loads: Sequence[Transfer],
    ) -> tuple[Row, ...]:
        """What the draft program takes in within the plan of ``rows``; blocks that these begin to
        write, and what is copied or loaded, it has to take in."""
        size, whole = self._size, self._whole
        for request, row in zip(owners, rows, strict=True):
            first, end = -(-row.start // size), -(-row.end // size)
            for i in range(first, end):
                whole.discard(request.table.at(i)[0])
        whole.difference_update([copy.dst[0] for copy in copies])
        whole.difference_update([load.block for load in loads if load.group == 0])
        taken, self._rows = tuple(self._rows), []
        return taken

    def settled(self, request: Request, n_asked: int) -> None:
        """How far a row of drafts got is known; it asked for ``n_asked`` more."""
        entries = self._entries.get(request)
        if entries is not None and entries.n_preempted == request.n_preempted:
            self._look(request, entries)
            n = min(entries.n + entries.n_ahead, request.n_computed)
            self._note(request, n, n_asked if n == request.n_computed else 0)

    def ended(self, request: Request) -> None:
        self._entries.pop(request, None)

    def _found(self, request: Request) -> int:
        """As ``_has``, with what was taken in of others meanwhile whose blocks it shares."""
        has = self._has(request)
        if has + self._size > request.n_computed:
            return has
        n_whole = self._n_whole(request, request.n_computed)
        if n_whole > has:
            self._note(request, n_whole, 0)
        return max(has, n_whole)

    def _has(self, request: Request) -> int:
        """Tokens whose entries it has, drafted ones included."""
        n_computed, entries = request.n_computed, self._entries.get(request)
        if entries is None or entries.n_preempted != request.n_preempted:
            entries = self._entries[request] = _DraftEntries(request.n_preempted)
            entries.n, entries.seen = self._n_whole(request, n_computed), request.vouched.node
        self._look(request, entries)
        if entries.n == n_computed:
            return n_computed + entries.n_ahead
        n = min(n_computed, entries.n + min(1, entries.n_ahead))
        self._note(request, n, 0)
        return n

    def _look(self, request: Request, entries: _DraftEntries) -> None:
        """When the cache learned of blocks it may have put an equal one of another request in the
        place of one, which has what that took in. What is ahead in others is taken in again."""
        if entries.seen is request.vouched.node:
            return
        entries.seen = request.vouched.node
        n_full, n_more = divmod(entries.n, self._size)
        n_whole = self._n_whole(request, entries.n)
        is_other = n_more > 0 and request.table.at(n_full)[0] != entries.last
        if is_other or n_whole < n_full * self._size:
            entries.n, entries.n_ahead = n_whole, 0
        entries.n_ahead = min(entries.n_ahead, -entries.n % self._size)

    def _n_whole(self, request: Request, n_tokens: int) -> int:
        """Of the first ``n_tokens`` those in full blocks of which it has every entry."""
        n_blocks = n_tokens // self._size
        blocks = enumerate(request.table.held(0)[:n_blocks])
        return self._size * next((i for i, x in blocks if x not in self._whole), n_blocks)

    def _note(self, request: Request, n: int, n_ahead: int) -> None:
        entries = self._entries[request]
        for i in range(entries.n // self._size, n // self._size):
            self._whole.add(request.table.at(i)[0])
        entries.n, entries.n_ahead = n, n_ahead
        has_last = n < request.table.n_tokens
        entries.last = request.table.at(n // self._size)[0] if has_last else -1
