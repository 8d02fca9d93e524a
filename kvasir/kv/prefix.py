"""The prefix cache: pool and index as one, for those who hold blocks through tables."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.core.errors import KvasirError
from kvasir.kv.index import NO_BLOCK, Node, PrefixIndex
from kvasir.kv.keys import Chain
from kvasir.kv.pool import BlockPool
from kvasir.kv.table import BlockTable


@dataclass(frozen=True, slots=True)
class Hit:
    """What is cached of a sequence."""

    node: Node
    """Of the last full block; a root when there is none."""
    blocks: tuple[int, ...] = ()
    source: int = NO_BLOCK
    """A block whose first ``n_rows`` entries are those that come next."""
    n_rows: int = 0


class PrefixCache:
    """Blocks, and what the full ones among them hold.

    Whoever holds a block that the index knows also holds all blocks before it, and gives up the
    last one first. So in the order in which cached blocks were given up, each comes before the ones
    it follows, and taking the oldest always takes a leaf.
    """

    def __init__(self, n_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.index = PrefixIndex()
        self.pool = BlockPool(n_blocks, self.index)

    def find(self, chain: Chain, n_tokens: int) -> Hit:
        """The longest cached prefix of the first ``n_tokens``."""
        size = self.block_size
        n_full = n_tokens // size
        nodes = self.index.match(chain.root, chain.keys(n_full), n_full)
        n_found = len(nodes) - 1
        start, stop = n_found * size, min(n_tokens, (n_found + 1) * size)
        source, n_rows = None, 0
        if nodes[-1].children and start < stop:
            source, n_rows = self.index.part(nodes[-1], chain.packed(start, stop))
        return Hit(
            nodes[-1],
            tuple(node.block for node in nodes[1:]),
            NO_BLOCK if source is None else source.block,
            n_rows,
        )

    def n_idle(self, hit: Hit) -> int:
        """Blocks of ``hit`` that count as available until they are adopted."""
        return sum(not self.pool.refs(block) for block in hit.blocks)

    def adopt(self, hit: Hit, table: BlockTable) -> None:
        """Begin ``table`` with the full blocks of ``hit``."""
        table.adopt(hit.blocks)
        self.pool.touch(hit.source)

    def insert(self, node: Node, chain: Chain, table: BlockTable) -> Node | None:
        """The next full block of ``table`` after ``node`` becomes known; its node.

        When an equal block is known already the table shares that one. None when ``node`` was
        dropped: what follows it can be found no more.
        """
        if not node.is_live:
            return None
        i, size = node.depth, self.block_size
        tokens = chain.packed(i * size, (i + 1) * size)
        new = self.index.insert(node, chain.keys(i + 1)[i], tokens, table[i])
        if new.block != table[i]:
            table.replace(i, new.block)
        return new

    def drop_unproven(self, node: Node) -> None:
        """Forget what may have made logits not finite: the blocks up to ``node`` that never gave
        finite ones, and all that follow them. Those in use stay with their owners."""
        if node.is_proven:
            return
        while node.parent is not None and not node.parent.is_proven:
            node = node.parent
        self.pool.forget(self.index.drop(node))

    def reset(self) -> None:
        """Forget everything that is cached."""
        self.pool.forget(self.index.clear())

    def check(self) -> None:
        """Raises KvasirError unless blocks add up, and the next to go is always a leaf."""
        self.pool.check()
        self.index.check()
        place = {block: i for i, block in enumerate(self.pool.cached())}
        for block in place:
            parent = self._parent(block)
            if place.get(parent, len(place)) < place[block]:
                raise KvasirError(f"block {parent} goes before block {block}, which follows it")
        for block in range(self.pool.n_blocks):
            if self.pool.refs(block) and self._parent(block) in place:
                raise KvasirError(f"block {block} is used, the block before it is not")

    def _parent(self, block: int) -> int:
        node = self.index.node(block)
        return NO_BLOCK if node is None or node.parent is None else node.parent.block
