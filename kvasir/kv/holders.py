"""Who holds blocks, each by one entry: requests that run, and those that ended and are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from kvasir.core.request import EngineRequest
from kvasir.kv.keys import KeyChain
from kvasir.kv.radix import Node
from kvasir.kv.table import BlockTable

MAX_KEPT = 4096
"""Ended requests that are kept at a time; beyond it the one whose time is up first goes."""


@dataclass(slots=True, eq=False)
class Vouched:
    """What the cache knows of a holder's blocks."""

    chain: KeyChain | None = None
    """Keys of its full blocks, once the cache was asked."""
    node: Node | None = None
    """Of the last block that it vouched for; None when it tells the cache nothing (more)."""
    coming: bytes = b""
    """Key of the full block that it computes next; empty when its tokens are not all known."""
    news_at: int = 0
    """Computed tokens before which nothing of its blocks changes hands."""


@dataclass(slots=True, eq=False, kw_only=True)
class Holder:
    """Tokens of a request, and the blocks in which their keys and values lie.

    While it runs it computes and tells the cache; when it ended it may be kept for others that go
    on with its tokens. While it waits its table is empty.
    """

    id: int
    asked: EngineRequest
    tokens: list[int]
    """Prompt and output; outputs are appended when they are committed. Until it starts it may share
    the list with other choices of its prompt."""
    table: BlockTable
    n_computed: int = 0
    """Tokens whose KV entries are written once every plan made so far has run."""
    n_preempted: int = 0
    """Results of a row that was planned before say nothing about its blocks."""
    vouched: Vouched = field(default_factory=Vouched)
    until: float | None = None
    """When it goes, once it ended and is kept."""

    @property
    def rank(self) -> int:
        """Of its class; 0 is the highest."""
        return self.asked.standing.rank


class Holders:
    """Running and kept requests by their ids. Kept blocks are not evicted from the cache, but yield
    when a running request needs them."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock``: seconds, monotonic."""
        self.n_kept = 0
        self._clock = clock
        self._holders: dict[int, Holder] = {}
        self._ends: list[tuple[float, int]] = []
        """A heap of when those that are kept go at the latest, and of some that went before."""

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._holders.values())

    def get(self, request_id: int) -> Holder | None:
        return self._holders.get(request_id)

    def add(self, holder: Holder) -> None:
        """One that runs from now on; whoever was kept under its id goes."""
        self.let_go(holder.id)
        self._holders[holder.id] = holder

    def remove(self, holder: Holder) -> None:
        """A running one gives up its blocks."""
        del self._holders[holder.id]
        holder.table.release()

    def keep(self, holder: Holder, n_computed: int) -> None:
        """A running one ends, and holds the blocks of its first ``n_computed`` tokens until its
        time is up."""
        if self.n_kept == MAX_KEPT:
            self.reclaim()
        holder.vouched = Vouched()  # a chain holds the keys of all blocks: nobody asks for more
        holder.n_computed = n_computed
        holder.table.trim(n_computed)
        holder.until = self._clock() + holder.asked.hold_seconds
        self.n_kept += 1
        heappush(self._ends, (holder.until, holder.id))
        if len(self._ends) > 2 * MAX_KEPT:
            self._ends = [(x.until, x.id) for x in self if x.until is not None]
            heapify(self._ends)

    def let_go(self, request_id: int) -> None:
        """What is kept under an id gives its blocks back."""
        holder = self._holders.get(request_id)
        if holder is not None and holder.until is not None:
            self.n_kept -= 1
            self.remove(holder)

    def expire(self) -> None:
        """Let go of what was kept for long enough."""
        now = self._clock()
        while (first := self._first()) is not None and first[0] <= now:
            self.let_go(first[1])

    def reclaim(self) -> bool:
        """Let go of what would expire first; False when nothing is kept."""
        first = self._first()
        if first is not None:
            self.let_go(first[1])
        return first is not None

    def _first(self) -> tuple[float, int] | None:
        """Whose time is up first, and when."""
        ends = self._ends
        while ends:
            until, request_id = ends[0]
            holder = self._holders.get(request_id)
            if holder is not None and holder.until == until:
                return until, request_id
            heappop(ends)
        return None
