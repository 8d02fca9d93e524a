"""Blocks that stay with a request after it ended, for those that go on with its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from kvasir.core.request import Context
from kvasir.kv.table import BlockTable
from kvasir.sched.request import Request

MAX_HELD = 4096
"""Requests held at a time; beyond it the one whose time is up first is let go."""


@dataclass(frozen=True, slots=True)
class Held:
    """The first ``n_computed`` of ``tokens`` have their entries in ``table``."""

    tokens: Sequence[int]
    table: BlockTable
    n_computed: int
    context: Context
    until: float


class Holds:
    """Held blocks are not evicted from the cache, but yield when a running request needs them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds, monotonic."""
        self._clock = clock
        self._held: dict[int, Held] = {}
        self._ends: list[tuple[float, int]] = []
        """A heap of when each is let go at the latest, and of some that were let go before."""

    def __len__(self) -> int:
        return len(self._held)

    def keep(self, request: Request) -> None:
        """Hold a share of the blocks of a running request that ends now, as far as they are
        computed. Entries that wait for a move will not be moved any more."""
        if len(self._held) == MAX_HELD:
            self.reclaim()
        n_computed = min(request.n_computed, len(request.tokens) - 1)
        if request.moves:
            n_computed = min(n_computed, request.moves[0].dst)
        table = request.table.fork()
        table.trim(n_computed)
        until = self._clock() + request.share.hold_seconds
        self._held[request.id] = Held(
            request.tokens, table, n_computed, request.share.context, until
        )
        heappush(self._ends, (until, request.id))
        if len(self._ends) > 2 * MAX_HELD:
            self._ends = [(held.until, i) for i, held in self._held.items()]
            heapify(self._ends)

    def get(self, request_id: int) -> Held | None:
        return self._held.get(request_id)

    def let_go(self, request_id: int) -> None:
        """Give the blocks back; nothing when they are not held."""
        held = self._held.pop(request_id, None)
        if held is not None:
            held.table.release()

    def expire(self) -> None:
        """Let go of what was held for long enough."""
        now = self._clock()
        while (first := self._first()) is not None and self._held[first].until <= now:
            self.let_go(first)

    def reclaim(self) -> bool:
        """Let go of what would expire first; False when nothing is held."""
        first = self._first()
        if first is None:
            return False
        self.let_go(first)
        return True

    def clear(self) -> None:
        """Let go of everything."""
        while self.reclaim():
            continue

    def blocks(self, group: int) -> set[int]:
        return {block for held in self._held.values() for block in held.table.held(group)}

    def _first(self) -> int | None:
        """Whose time is up first."""
        ends, held = self._ends, self._held
        while ends and (ends[0][1] not in held or held[ends[0][1]].until != ends[0][0]):
            heappop(ends)
        return ends[0][1] if ends else None
