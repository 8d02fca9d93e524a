"""The blocks of one request, in the order of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.core.errors import KvasirError
from kvasir.kv.pool import BlockPool


def blocks_for(n_tokens: int, block_size: int) -> int:
    """Blocks that hold ``n_tokens``."""
    return -(-n_tokens // block_size)


class BlockTable:
    """Owns its blocks until ``release``."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        self._pool = pool
        self._block_size = block_size
        self._blocks: list[int] = []
        self._covering: tuple[int, ...] = ()

    def __getitem__(self, index: int) -> int:
        return self._blocks[index]

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def n_tokens(self) -> int:
        """Tokens that the blocks hold."""
        return len(self._blocks) * self._block_size

    def missing(self, n_tokens: int) -> int:
        """Blocks to allocate before ``n_tokens`` fit."""
        return max(0, blocks_for(n_tokens, self._block_size) - len(self._blocks))

    def grow(self, n_tokens: int) -> None:
        """Hold at least ``n_tokens``. Raises CapacityError, changing nothing, if blocks run out."""
        self._blocks.extend(self._pool.allocate(self.missing(n_tokens)))

    def adopt(self, blocks: Sequence[int]) -> None:
        """Begin an empty table with a share of ``blocks``, which are full and read only."""
        if self._blocks:
            raise KvasirError(f"a table of {len(self._blocks)} blocks cannot begin with others")
        self._pool.share(blocks)
        self._blocks.extend(blocks)

    def replace(self, index: int, block: int) -> None:
        """Hold ``block`` at ``index`` instead of an own one with equal contents.

        Rows planned before may still read the old block: steps run in order, so they do before
        any new owner writes it.
        """
        self._pool.share((block,))
        self._pool.free((self._blocks[index],))
        self._blocks[index] = block
        self._covering = ()

    def trim(self, n_tokens: int) -> None:
        """Give back the blocks past ``n_tokens``, the last one first: what is cached of them goes
        in that order, so that no block goes before those that follow it."""
        keep = blocks_for(n_tokens, self._block_size)
        self._pool.free(reversed(self._blocks[keep:]))
        del self._blocks[keep:]
        self._covering = ()

    def covering(self, n_tokens: int) -> tuple[int, ...]:
        """Ids of the blocks of storage indices [0, n_tokens); the same object while they stay."""
        n_blocks = -(-n_tokens // self._block_size)
        if len(self._covering) != n_blocks:
            self._covering = tuple(self._blocks[:n_blocks])
        return self._covering

    def fork(self) -> BlockTable:
        """A table over the same blocks, which are read only until one of the two gives them up."""
        self._pool.share(self._blocks)
        twin = BlockTable(self._pool, self._block_size)
        twin._blocks = list(self._blocks)
        return twin

    def release(self) -> None:
        """Give back every block; the table is empty afterwards."""
        self.trim(0)
