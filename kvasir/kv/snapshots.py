"""A pool of states: those that sequences go on with, and snapshots of them.

Snapshots differ in what they are worth: one far from the next before it saves long computing, one
close to it hardly any. All are equally large, so seconds saved per byte are seconds saved.
GreedyDual (Young, "The k-server dual and loose competitiveness for paging", Algorithmica 1994)
weighs them against the time since a snapshot was wanted: it has the level that the pool had then,
and what it saves on top; the least goes first, and its sum is the new level.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from heapq import heapify, heappop, heappush

from kvasir.kv.pool import BlockPool


class SnapshotPool(BlockPool):
    """O(log cached) for each snapshot that is given up or evicted."""

    def __init__(
        self,
        n_blocks: int,
        window: int,
        known: Container[int],
        on_evict: Callable[[int], None],
        saves: Callable[[int], float],
        stride: int,
    ) -> None:
        """``saves``: seconds, of a known block. ``stride``: tokens between snapshots."""
        super().__init__(n_blocks, window, known, on_evict)
        self.stride = stride
        self._saves = saves
        self._level = 0.0
        self._n_ranked = 0
        self._ranks: dict[int, tuple[float, int, float]] = {}
        """Of a cached block what it counts, when it was given up, and the level at that time."""
        self._heap: list[tuple[float, int, int]] = []
        """The first two of these and the block; those of before may be among them."""

    def cached(self) -> tuple[int, ...]:
        return tuple(sorted(self._cached, key=self._ranks.__getitem__))

    def free(self, blocks: Iterable[int]) -> None:
        given = tuple(blocks)
        super().free(given)
        for block in given:
            if block in self._cached:
                self._n_ranked += 1
                self._rank(block, self._n_ranked, self._level)
        if len(self._heap) > 4 * self.n_blocks:
            self._heap = [(*self._ranks[block][:2], block) for block in self._cached]
            heapify(self._heap)

    def _rank(self, block: int, serial: int, level: float) -> float:
        value = level + self._saves(block)
        self._ranks[block] = value, serial, level
        heappush(self._heap, (value, serial, block))
        return value

    def _evict(self) -> int:
        while True:
            value, serial, block = heappop(self._heap)
            if block not in self._cached or self._ranks[block][:2] != (value, serial):
                continue
            # more than before, where the snapshot in front of it has gone
            if self._rank(block, serial, self._ranks[block][2]) <= value:
                break
        self._level = value
        del self._cached[block]
        if self._on_evict is not None:
            self._on_evict(block)
        return block
