"""The blocks of one request, in the order of their tokens."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.core.groups import NO_BLOCK, Tables, blocks_for, first_block
from kvasir.kv.lines import BlockLine, StateLine
from kvasir.kv.pool import BlockPool
from kvasir.kv.snapshots import SnapshotPool


class BlockTable:
    """Owns blocks of every group until ``release``.

    Those of a windowed group are given back as the window moves on; NO_BLOCK takes their places.
    """

    def __init__(self, pools: Sequence[BlockPool], block_size: int) -> None:
        self._block_size = block_size
        self._lines = [
            StateLine(pool, block_size) if isinstance(pool, SnapshotPool) else BlockLine(pool)
            for pool in pools
        ]
        self._states = [(g, x) for g, x in enumerate(self._lines) if isinstance(x, StateLine)]
        self.n_tokens = 0
        """Tokens that the blocks of every group hold; only the table changes it."""
        self.news: list[tuple[int, int, int]] = []
        """(group, first, end) of blocks that changed since ``take_news``."""

    def at(self, index: int) -> tuple[int, ...]:
        """Per group the block ``index``."""
        return tuple([line.blocks[index] for line in self._lines])

    def full(self, index: int) -> tuple[int, ...]:
        """Per group the block that holds what belongs to the full block ``index`` of the tokens;
        NO_BLOCK where a state has gone on without a snapshot."""
        return tuple([line.full(index) for line in self._lines])

    @property
    def n_held(self) -> int:
        """Blocks of all groups that the table owns."""
        return sum([len(line.held()) for line in self._lines])

    def held(self, group: int) -> list[int]:
        """Blocks of ``group`` that the table owns."""
        return self._lines[group].held()

    def leave_snapshots(self, n_tokens: int, borders: Collection[int]) -> None:
        """Of states: after ``borders`` full blocks, and at the newest border past ``n_tokens``."""
        for _, line in self._states:
            line.borders, line.turn = borders, blocks_for(n_tokens, self._block_size)

    def hold_snapshot(self, border: int, blocks: Sequence[int]) -> bool:
        """Own of each state what ``blocks`` have after ``border`` full blocks, in place of what it
        would go on with; False when they lack one."""
        lines = [(line, blocks[group]) for group, line in self._states]
        if any(block == NO_BLOCK or border > len(line.blocks) for line, block in lines):
            return False
        for line, block in lines:
            line.hold(border - 1, block)
        return True

    def passing(self, border: int) -> list[int]:
        """Groups whose snapshot after ``border`` full blocks is of use until there is a newer one
        only."""
        return [group for group, line in self._states if not line.lasts(border)]

    def try_grow(self, n_tokens: int) -> bool:
        """Hold at least ``n_tokens``; False, changing nothing, if blocks run out."""
        try:
            self.grow(n_tokens)
        except CapacityError:
            return False
        return True

    def room(self) -> int:
        """Tokens that the table could hold now."""
        return min([line.most() for line in self._lines]) * self._block_size

    def grow(self, n_tokens: int) -> None:
        """Hold at least ``n_tokens``. Raises CapacityError, changing nothing, if blocks run out."""
        if n_tokens > self.n_tokens:
            self._grow(blocks_for(n_tokens, self._block_size), self._lines)

    def grow_full(self, n_tokens: int) -> None:
        """Hold at least ``n_tokens`` in the groups that give back nothing. Raises CapacityError."""
        full = [line for line in self._lines if not line.pool.window]
        self._grow(blocks_for(n_tokens, self._block_size), full)

    def adopt(self, tables: Tables) -> None:
        """Begin an empty table with a share of blocks that are full and read only; those that a
        group lacks come first."""
        if any(line.blocks for line in self._lines):
            raise KvasirError(f"a table of {self.n_tokens} tokens cannot begin with others")
        if not any(tables):
            return
        for group, (line, adopted) in enumerate(zip(self._lines, tables, strict=True)):
            self.news.append((group, line.adopt(adopted), len(adopted)))
        self._count()

    def replace(self, group: int, index: int, block: int) -> None:
        """Hold ``block`` at ``index`` instead of an own one with equal contents.

        Rows planned before may still read the old block: steps run in order, so they do before
        any new owner writes it.
        """
        self.news.append((group, self._lines[group].replace(index, block), index + 1))

    def give_back(self, n_tokens: int) -> int:
        """Give back what no token at position ``n_tokens`` or later sees, the first block first;
        for how many tokens there is more to give.

        Call it when the steps that compute the tokens before are done: then no planned row reads
        these blocks, and what is full of them is known to the cache.
        """
        for group, n_gone in self._to_give(n_tokens):
            line = self._lines[group]
            before = line.n_gone
            line.give(n_gone)
            self.news.append((group, before, n_gone))
        groups = [(line.n_gone + 1, line.pool.window) for line in self._lines]
        nexts = (i * self._block_size + window - 1 for i, window in groups if window)
        return min(nexts, default=sys.maxsize)

    def gives_back(self, n_tokens: int) -> bool:
        """Whether ``give_back`` would give any."""
        return any([self._lines[group].leaving(n) for group, n in self._to_give(n_tokens)])

    def trim(self, n_tokens: int) -> None:
        """Give back the blocks past ``n_tokens``, the last one first: what is cached of them goes
        in that order, so that no block goes before those that follow it."""
        for line in self._lines:
            line.trim(blocks_for(n_tokens, self._block_size))
        self._count()

    def take_news(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """What changed since the last time, as it is now: (group, first, blocks from there on)."""
        lines = self._lines
        told = [(g, first, tuple(lines[g].blocks[first:end])) for g, first, end in self.news]
        self.news.clear()
        return told

    def release(self) -> None:
        """Give back every block; the table is empty afterwards."""
        self.trim(0)
        self.news.clear()

    def _grow(self, n_blocks: int, lines: Sequence[BlockLine]) -> None:
        for line in lines:
            line.pool.require(line.n_fresh(n_blocks))
        for group, line in enumerate(self._lines):
            if line in lines and n_blocks > len(line.blocks):
                self.news.append((group, len(line.blocks), n_blocks))
                line.grow(n_blocks)
        self._count()

    def _count(self) -> None:
        self.n_tokens = min([len(line.blocks) for line in self._lines]) * self._block_size

    def _to_give(self, n_tokens: int) -> list[tuple[int, int]]:
        """Windowed groups with blocks to give back, and how many are gone afterwards."""
        found = []
        for group, line in enumerate(self._lines):
            n_gone = first_block(n_tokens, line.pool.window, self._block_size)
            n_gone = min(n_gone, len(line.blocks))
            if n_gone > line.n_gone:
                found.append((group, n_gone))
        return found
