"""The blocks of one request, in the order of their tokens."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvasir.core.errors import KvasirError
from kvasir.core.groups import NO_BLOCK, Tables, blocks_for, first_block
from kvasir.kv.pool import BlockPool


class BlockTable:
    """Owns blocks of every group until ``release``.

    Those of a windowed group are given back as the window moves on; NO_BLOCK takes their places.
    """

    def __init__(self, pools: Sequence[BlockPool], block_size: int) -> None:
        self._pools = pools
        self._block_size = block_size
        self._groups = [(group, list[int](), pool) for group, pool in enumerate(pools)]
        self._blocks = [blocks for _, blocks, _ in self._groups]
        self._n_gone = [0] * len(pools)
        """Per group, blocks that were given back."""
        self.n_tokens = 0
        """Tokens that the blocks of every group hold; only the table changes it."""
        self.news: list[tuple[int, int, int]] = []
        """(group, first, end) of blocks that changed since ``take_news``."""

    def at(self, index: int) -> tuple[int, ...]:
        """Per group the block ``index``."""
        return tuple([blocks[index] for blocks in self._blocks])

    @property
    def n_held(self) -> int:
        """Blocks of all groups that the table owns."""
        return sum(map(len, self._blocks)) - sum(self._n_gone)

    def held(self, group: int) -> list[int]:
        """Blocks of ``group`` that the table owns."""
        return self._blocks[group][self._n_gone[group] :]

    def try_grow(self, n_tokens: int) -> bool:
        """Hold at least ``n_tokens``; False, changing nothing, if blocks run out."""
        if n_tokens <= self.n_tokens:
            return True
        n_blocks = -(-n_tokens // self._block_size)
        for _, blocks, pool in self._groups:
            if n_blocks - len(blocks) > pool.n_available:
                return False
        self._grow(n_blocks, self._groups)
        return True

    def room(self) -> int:
        """Tokens that the table could hold now."""
        n_blocks = min(len(blocks) + pool.n_available for _, blocks, pool in self._groups)
        return n_blocks * self._block_size

    def grow(self, n_tokens: int) -> None:
        """Hold at least ``n_tokens``. Raises CapacityError, changing nothing, if blocks run out."""
        if n_tokens > self.n_tokens:
            self._grow(blocks_for(n_tokens, self._block_size), self._groups)

    def grow_full(self, n_tokens: int) -> None:
        """Hold at least ``n_tokens`` in the groups that give back nothing. Raises CapacityError."""
        full = [each for each in self._groups if not each[2].window]
        self._grow(blocks_for(n_tokens, self._block_size), full)

    def adopt(self, tables: Tables) -> None:
        """Begin an empty table with a share of blocks that are full and read only; those that a
        group lacks come first."""
        if any(self._blocks):
            raise KvasirError(f"a table of {self.n_tokens} tokens cannot begin with others")
        if not any(tables):
            return
        for group, (pool, adopted) in enumerate(zip(self._pools, tables, strict=True)):
            n_gone = adopted.count(NO_BLOCK) if pool.window else 0
            pool.share(adopted[n_gone:])
            self._blocks[group].extend(adopted)
            self._n_gone[group] = n_gone
            self.news.append((group, n_gone, len(adopted)))
        self._count()

    def replace(self, group: int, index: int, block: int) -> None:
        """Hold ``block`` at ``index`` instead of an own one with equal contents.

        Rows planned before may still read the old block: steps run in order, so they do before
        any new owner writes it.
        """
        pool, blocks = self._pools[group], self._blocks[group]
        pool.share((block,))
        pool.free((blocks[index],))
        blocks[index] = block
        self.news.append((group, index, index + 1))

    def give_back(self, n_tokens: int) -> int:
        """Give back what no token at position ``n_tokens`` or later sees, the first block first;
        for how many tokens there is more to give.

        Call it when the steps that compute the tokens before are done: then no planned row reads
        these blocks, and what is full of them is known to the cache.
        """
        for group, n_gone in self._to_give(n_tokens):
            blocks, before = self._blocks[group], self._n_gone[group]
            self._pools[group].free(blocks[before:n_gone])
            blocks[before:n_gone] = [NO_BLOCK] * (n_gone - before)
            self._n_gone[group] = n_gone
            self.news.append((group, before, n_gone))
        groups = [(n + 1, x.window) for n, x in zip(self._n_gone, self._pools, strict=True)]
        nexts = (i * self._block_size + window - 1 for i, window in groups if window)
        return min(nexts, default=sys.maxsize)

    def gives_back(self, n_tokens: int) -> bool:
        """Whether ``give_back`` would give any."""
        return bool(self._to_give(n_tokens))

    def trim(self, n_tokens: int) -> None:
        """Give back the blocks past ``n_tokens``, the last one first: what is cached of them goes
        in that order, so that no block goes before those that follow it."""
        keep = blocks_for(n_tokens, self._block_size)
        for group, (pool, blocks) in enumerate(zip(self._pools, self._blocks, strict=True)):
            pool.free(reversed(blocks[max(keep, self._n_gone[group]) :]))
            del blocks[keep:]
            self._n_gone[group] = min(self._n_gone[group], keep)
        self._count()

    def take_news(self) -> list[tuple[int, int, tuple[int, ...]]]:
        """What changed since the last time, as it is now: (group, first, blocks from there on)."""
        told = [(g, first, tuple(self._blocks[g][first:end])) for g, first, end in self.news]
        self.news.clear()
        return told

    def release(self) -> None:
        """Give back every block; the table is empty afterwards."""
        self.trim(0)
        self.news.clear()

    def _grow(self, n_blocks: int, groups: Sequence[tuple[int, list[int], BlockPool]]) -> None:
        for _, blocks, pool in groups[1:]:  # the first one requires them itself
            pool.require(n_blocks - len(blocks))
        for group, blocks, pool in groups:
            if n_blocks > len(blocks):
                self.news.append((group, len(blocks), n_blocks))
                blocks.extend(pool.allocate(n_blocks - len(blocks)))
        self._count()

    def _count(self) -> None:
        self.n_tokens = min(map(len, self._blocks)) * self._block_size

    def _to_give(self, n_tokens: int) -> list[tuple[int, int]]:
        """Windowed groups with blocks to give back, and how many are gone afterwards."""
        found = []
        for group, pool in enumerate(self._pools):
            if pool.window:
                n_gone = first_block(n_tokens, pool.window, self._block_size)
                n_gone = min(n_gone, len(self._blocks[group]))
                if n_gone > self._n_gone[group]:
                    found.append((group, n_gone))
        return found
