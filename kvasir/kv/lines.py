"""The blocks of one group in a request's table."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Sequence

from kvasir.core.groups import NO_BLOCK
from kvasir.kv.pool import BlockPool
from kvasir.kv.snapshots import SnapshotPool


class BlockLine:
    """Block after block, each of its own entries. Those that a window has left are given back, and
    NO_BLOCK takes their places."""

    __slots__ = ("blocks", "n_gone", "pool")

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.blocks: list[int] = []
        self.n_gone = 0
        """Blocks that were given back."""

    def held(self) -> list[int]:
        """Blocks that it owns."""
        return self.blocks[self.n_gone :]

    def full(self, index: int) -> int:
        """The block whose contents are those of block ``index`` of the tokens, once it is full."""
        return self.blocks[index]

    def n_fresh(self, n_blocks: int) -> int:
        """Blocks without which it cannot grow to ``n_blocks``."""
        return n_blocks - len(self.blocks)

    def most(self) -> int:
        """Blocks that it could grow to now."""
        return len(self.blocks) + self.pool.n_available

    def grow(self, n_blocks: int) -> None:
        """Raises CapacityError, changing nothing, if blocks run out."""
        self.blocks.extend(self.pool.allocate(n_blocks - len(self.blocks)))

    def adopt(self, blocks: Sequence[int]) -> int:
        """Begin with a share of ``blocks``; how many come before those that are there."""
        n_gone = self.n_gone = blocks.count(NO_BLOCK) if self.pool.window else 0
        self.pool.share(self.owned(blocks[n_gone:]))
        self.blocks.extend(blocks)
        return n_gone

    def replace(self, index: int, block: int) -> int:
        """Own ``block`` at ``index`` instead; the first index that changed."""
        self.pool.share((block,))
        self.pool.free((self.blocks[index],))
        self.blocks[index] = block
        return index

    def leaving(self, n_gone: int) -> Sequence[int]:
        """Blocks that it would own no more without its first ``n_gone``."""
        return self.blocks[self.n_gone : n_gone]

    def give(self, n_gone: int) -> None:
        """Give back the first ``n_gone`` blocks, the first one first."""
        self.pool.free(self.leaving(n_gone))
        self.blocks[self.n_gone : n_gone] = [NO_BLOCK] * (n_gone - self.n_gone)
        self.n_gone = n_gone

    def trim(self, n_blocks: int) -> None:
        """Give back those past ``n_blocks``, the last one first."""
        self.pool.free(reversed(self.blocks[max(n_blocks, self.n_gone) :]))
        del self.blocks[n_blocks:]
        self.n_gone = min(self.n_gone, n_blocks)

    def owned(self, blocks: Iterable[int]) -> Sequence[int]:
        """Each of ``blocks``, a part of the line, as often as it is owned."""
        return tuple(blocks)


class StateLine(BlockLine):
    """States: one goes on in place from block to block of the tokens, so the same block stands for
    one after the other. Where a snapshot is wanted it goes on in a block of its own, and leaves
    behind what nobody writes any more."""

    __slots__ = ("borders", "stride", "turn")

    def __init__(self, pool: SnapshotPool, block_size: int) -> None:
        super().__init__(pool)
        self.stride = pool.stride // block_size
        """Blocks between snapshots; 0: there are none but those of this sequence."""
        self.borders: Collection[int] = ()
        """Numbers of blocks after which this sequence leaves a snapshot."""
        self.turn = 0
        """From here on the newest border has one: it may be the last of the turn."""

    def lasts(self, border: int) -> bool:
        """Whether a snapshot after ``border`` blocks stays when there is a newer one."""
        return border in self.borders or (self.stride > 0 and border % self.stride == 0)

    def held(self) -> list[int]:
        return list(self.owned(self.blocks[self.n_gone :]))

    def full(self, index: int) -> int:
        """NO_BLOCK where the state has gone on, or no snapshot is wanted."""
        block, border = self.blocks[index], index + 1
        if border < len(self.blocks):
            return NO_BLOCK if self.blocks[border] == block else block
        return block if border >= self.turn or self.lasts(border) else NO_BLOCK

    def n_fresh(self, n_blocks: int) -> int:
        blocks = self.blocks
        if n_blocks <= len(blocks):
            return 0
        return not blocks or blocks[-1] == NO_BLOCK or self.pool.is_shared(blocks[-1])

    def most(self) -> int:
        n = len(self.blocks)
        return sys.maxsize if self.pool.n_available or not self.n_fresh(n + 1) else n

    def grow(self, n_blocks: int) -> None:
        """A snapshot that no block is left for is left out."""
        blocks, pool = self.blocks, self.pool
        if self.n_fresh(n_blocks):
            blocks.extend(pool.allocate(1))
        for border in range(len(blocks), n_blocks):
            is_end = border == n_blocks - 1 and border >= self.turn
            is_wanted = pool.n_available and (is_end or self.lasts(border))
            blocks.extend(pool.allocate(1) if is_wanted else blocks[-1:])

    def replace(self, index: int, block: int) -> int:
        blocks, first = self.blocks, index
        while first and blocks[first - 1] == blocks[index]:
            first -= 1
        own = blocks[index]
        self.pool.share((block,))
        self.pool.free((own,))
        blocks[first : index + 1] = [block] * (index + 1 - first)
        return first

    def leaving(self, n_gone: int) -> Sequence[int]:
        stays = self.blocks[n_gone] if n_gone < len(self.blocks) else NO_BLOCK
        return [x for x in self.owned(self.blocks[self.n_gone : n_gone]) if x != stays]

    def trim(self, n_blocks: int) -> None:
        """A state that has gone on past ``n_blocks`` is none of theirs."""
        blocks = self.blocks
        past = self.owned(blocks[max(n_blocks, self.n_gone) :])
        self.pool.free(reversed(past))
        del blocks[n_blocks:]
        blocks[:] = [NO_BLOCK if block in past else block for block in blocks]
        self.n_gone = min(self.n_gone, n_blocks)

    def hold(self, index: int, block: int) -> None:
        """Own a snapshot alone."""
        self.pool.share((block,))
        self.pool.free(self.held())
        self.blocks[:] = [NO_BLOCK] * len(self.blocks)
        self.blocks[index], self.n_gone = block, index

    def owned(self, blocks: Iterable[int]) -> Sequence[int]:
        return [block for block in dict.fromkeys(blocks) if block != NO_BLOCK]
