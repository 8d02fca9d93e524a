"""The prefix cache: pools and tree as one, for those who hold blocks through tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.core.groups import NO_BLOCK, KVGroup, Tables, first_block
from kvasir.kv.keys import KeyChain
from kvasir.kv.pool import BlockPool
from kvasir.kv.radix import Node, RadixTree
from kvasir.kv.snapshots import SnapshotPool
from kvasir.kv.table import BlockTable

OnEvict = Callable[[bytes, int, int], None]
"""Is told key, group and block of what is about to lose its contents."""
Seconds = Callable[[int, int], float]
"""What it costs to compute so many tokens after so many others."""
NODES_PER_BLOCK = 8
"""Prefixes known for each block: those that hold none any more, but lead to others, are bounded."""


class Hit(msgspec.Struct, frozen=True):
    """What memory holds of a sequence."""

    node: Node
    """Of the last full block; a root when there is none."""
    tables: Tables
    """Per group the full blocks; of a windowed one those that are seen from the hit's end on."""
    source: tuple[int, ...] = ()
    """Per group a block whose first ``n_part`` entries are those that come next."""
    n_part: int = 0
    reach: int = 0
    """Full blocks that are known, ``node``'s included: past it a state lacks."""


def n_tokens_of(n_tokens: int, start: int) -> float:
    """The costs of tokens where nobody measures."""
    return float(n_tokens)


class PrefixCache:
    """Blocks of every group, and what the full ones among them hold.

    Whoever holds a block of a group that keeps everything also holds all blocks before it, and
    gives up the last one first. So in the order in which cached blocks were given up, each comes
    before the ones it follows, and taking the oldest always takes a leaf. Blocks of a windowed
    group come and go one by one: a prefix may lack them, and is found when those are there that a
    token after it sees. So do snapshots of states, which stand where they are of use.
    """

    def __init__(
        self,
        groups: Sequence[KVGroup],
        block_size: int,
        on_evict: OnEvict | None = None,
        seconds: Seconds = n_tokens_of,
    ) -> None:
        """``on_evict``: for blocks that gave finite logits. ``seconds``: what a snapshot saves."""
        self.block_size = block_size
        self._on_evict = on_evict
        self.groups = tuple(groups)
        self.tree = RadixTree([group.window for group in groups])
        self._seconds = seconds
        self._keeps_all = any(not group.window for group in groups)
        self.pools = tuple(self._pool(i, group) for i, group in enumerate(groups))
        self._windowed = tuple((i, x.window) for i, x in enumerate(groups) if x.window)
        self._has_states = any(group.state_bytes for group in groups)
        self._max_nodes = NODES_PER_BLOCK * sum(group.n_blocks for group in groups)

    @property
    def n_available(self) -> int:
        """Blocks that can be allocated in every group."""
        return min([pool.n_available for pool in self.pools])

    def find(self, chain: KeyChain, n_tokens: int) -> Hit:
        """The longest cached prefix of the first ``n_tokens``; with state groups it ends where all
        of them have a snapshot, and never inside a block."""
        size = self.block_size
        n_full = n_tokens // size
        nodes = self.tree.match(chain.root, chain.keys(n_full), n_full)
        reach = len(nodes) - 1
        if self._windowed:
            del nodes[self._depth(nodes) + 1 :]
        depth, node = len(nodes) - 1, nodes[-1]
        if self._has_states:
            return Hit(node, self._tables(nodes, depth * size), reach=reach)
        start, stop = depth * size, min(n_tokens, (depth + 1) * size)
        source, n_part = None, 0
        if node.children and start < stop:
            source, n_part = self.tree.part(node, chain.words(start, stop))
        if source is None or NO_BLOCK in source.blocks:
            return Hit(node, self._tables(nodes, start), reach=depth)
        return Hit(node, self._tables(nodes, start + n_part), tuple(source.blocks), n_part, depth)

    def extended(self, hit: Hit, chain: KeyChain, depth: int) -> Hit:
        """The beginning of ``depth`` >= ``hit``'s full blocks: without a part of a block, and
        without blocks that no token after ``depth`` sees; of groups that keep everything as far as
        they are known."""
        tables = []
        reach = min(hit.reach, depth)
        nodes = self.tree.match(chain.root, chain.keys(reach), reach)
        for group, (pool, blocks) in enumerate(zip(self.pools, hit.tables, strict=True)):
            first = first_block(depth * self.block_size, pool.window, self.block_size)
            known = [] if pool.window else [x.blocks[group] for x in nodes[1 + len(blocks) :]]
            tables.append((*[NO_BLOCK] * first, *blocks[first:], *known))
        return Hit(hit.node, tuple(tables), reach=max(hit.reach, depth))

    def n_tokens(self, hit: Hit) -> int:
        """Of a hit."""
        return len(hit.tables[0]) * self.block_size + hit.n_part

    def whole(self, n_tokens: int) -> int:
        """As many of them as a request can begin after: a state is there after full blocks only."""
        return n_tokens - n_tokens % self.block_size if self._has_states else n_tokens

    def fits(self, hit: Hit, n_tokens: int, n_spare: int) -> bool:
        """Whether a table could begin with ``hit``, go on to ``n_tokens``, and leave ``n_spare``
        blocks in every group, while the block that a part is copied from is held."""
        for i, (group, pool, adopted) in enumerate(
            zip(self.groups, self.pools, hit.tables, strict=True)
        ):
            held = adopted[adopted.count(NO_BLOCK) :]  # those that it lacks come first
            n_fresh = max(1, group.needs(n_tokens, self.block_size) - len(held))
            n_idle = pool.n_idle((*held, *hit.source[i : i + 1]))
            if n_fresh + n_idle + n_spare > pool.n_available:
                return False
        return True

    def hold_source(self, hit: Hit) -> BlockTable:
        """A share of the blocks that a part is copied from, and of those before them, which must
        not go first."""
        table = BlockTable(self.pools, self.block_size)
        pairs = zip(hit.tables, hit.source, strict=True)
        table.adopt(tuple((*blocks, block) for blocks, block in pairs))
        return table

    def insert(self, node: Node, chain: KeyChain, table: BlockTable) -> Node | None:
        """The next full block of ``table`` after ``node`` becomes known; its node.

        When an equal block is known already the table shares that one. None when ``node`` was
        dropped, too much is known, or others share the block that would have to be given up, and
        those after it: what follows it can be found no more.
        """
        if not node.is_live or len(self.tree) >= self._max_nodes:
            return None
        i = node.depth
        key, tokens = chain.block(i)
        blocks = table.full(i)
        known = self.tree.get(key)
        if known is not None and self._is_bound(blocks, known):
            return None
        new = self.tree.insert(node, key, tokens, blocks)
        for group, block in enumerate(blocks):
            if block != new.blocks[group] and block != NO_BLOCK:
                table.replace(group, i, new.blocks[group])
        return new

    def extend(
        self, node: Node, chain: KeyChain, table: BlockTable, depth: int, *, is_proven: bool = False
    ) -> Node | None:
        """``insert`` up to ``depth`` full blocks; the last node, or None as there. A last one that
        holds no block of any group (all slid past it) is forgotten again."""
        last, new = node, node if node.is_live else None
        while new is not None and new.depth < depth:
            last, new = new, self.insert(new, chain, table)
        last = last if new is None else new
        if is_proven and last is not node:
            self.tree.prove(last)
        self.tree.prune(last)
        return new

    def drop_unproven(self, node: Node) -> None:
        """Forget what may have made logits not finite: the blocks up to ``node`` that never gave
        finite ones, and all that follow them. Those in use stay with their owners."""
        if node.is_proven:
            return
        while node.parent is not None and not node.parent.is_proven:
            node = node.parent
        self._forget(self.tree.drop(node))

    def evict(self, group: int, block: int) -> None:
        """The space of a cached block is needed."""
        node = self.tree.by_block[group][block]
        if self._on_evict is not None and node.is_proven:
            goes_whole = not self.pools[group].window
            for other, held in _held(node):
                if goes_whole or other == group:
                    self._on_evict(node.key, other, held)
        self._forget(self.tree.evict(group, block))

    def supersede(self, old: Node, new: Node, table: BlockTable) -> None:
        """Snapshots of a turn's borders from ``old`` on go, without being evicted, when one after
        ``new`` is there, unless somebody holds them or another prefix branches from there."""
        node: Node | None = new.parent
        while node is not None and node.depth >= max(1, old.depth):
            if len(node.children) == 1:
                for group in table.passing(node.depth):
                    self._drop_passing(group, node.blocks[group], new.blocks[group])
            node = node.parent

    def _drop_passing(self, group: int, block: int, newer: int) -> None:
        if NO_BLOCK not in (block, newer) and not self.pools[group].refs(block):
            self._forget(self.tree.evict(group, block))
            self.pools[group].forget((block,))

    def cached(self) -> Iterator[tuple[bytes, int, int]]:
        """Key, group and block of what has no owner and gave finite logits, the last to go first.
        The cache must not change meanwhile."""
        for group, pool in enumerate(self.pools):
            known = self.tree.by_block[group]
            for block in reversed(pool.cached()):
                if known[block].is_proven:
                    yield known[block].key, group, block

    def reset(self) -> None:
        """Forget everything that is cached."""
        self.tree.clear()
        for pool in self.pools:
            pool.forget(pool.cached())

    def check(self) -> None:
        """Raises KvasirError unless blocks add up, and the next to go is always a leaf."""
        self.tree.check()
        for group, pool in enumerate(self.pools):
            pool.check()
            if not pool.window:
                self._check_order(group, pool)

    def _pool(self, group: int, of: KVGroup) -> BlockPool:
        known, evict = self.tree.by_block[group], partial(self.evict, group)
        if not of.state_bytes:
            return BlockPool(of.n_blocks, of.window, known, evict)
        # a prefix is known by its blocks: where nothing else has any, each has a snapshot
        stride = of.stride if self._keeps_all else self.block_size
        saves = partial(self._saves, group)
        return SnapshotPool(of.n_blocks, of.window, known, evict, saves, stride)

    def _saves(self, group: int, block: int) -> float:
        """Seconds, if the next prefix begins with this snapshot instead of the one before it."""
        node = self.tree.by_block[group][block]
        up = node.parent
        while up is not None and up.parent is not None and up.blocks[group] == NO_BLOCK:
            up = up.parent
        n_before = up.depth if up is not None else 0
        size = self.block_size
        return self._seconds((node.depth - n_before) * size, n_before * size)

    def _check_order(self, group: int, pool: BlockPool) -> None:
        place = {block: i for i, block in enumerate(pool.cached())}
        for block in place:
            parent = self._parent(group, block)
            if place.get(parent, len(place)) < place[block]:
                raise KvasirError(f"block {parent} goes before block {block}, which follows it")
        for block in range(pool.n_blocks):
            if pool.refs(block) and self._parent(group, block) in place:
                raise KvasirError(f"block {block} is used, the block before it is not")

    def _parent(self, group: int, block: int) -> int:
        node = self.tree.by_block[group].get(block)
        if node is None or node.parent is None or node.parent.parent is None:
            return NO_BLOCK
        return node.parent.blocks[group]

    def _is_bound(self, blocks: Sequence[int], known: Node) -> bool:
        """Others (forks) hold one of ``blocks`` in place of a block of ``known``. Were the blocks
        after it known to follow ``known``, they would be held without those before them."""
        return any(
            own != other and not pool.window and pool.refs(own) > 1
            for pool, own, other in zip(self.pools, blocks, known.blocks, strict=True)
        )

    def _depth(self, nodes: Sequence[Node]) -> int:
        """Most of ``nodes``, after the root, that end with all blocks that a next token sees."""
        depth = len(nodes) - 1
        while (gap := self._gap(nodes, depth)) is not None:
            depth = gap
        return depth

    def _gap(self, nodes: Sequence[Node], depth: int) -> int | None:
        """Index of a block that is missing to begin after ``depth`` blocks, and so to begin
        anywhere between it and there."""
        for group, window in self._windowed:
            first = first_block(depth * self.block_size, window, self.block_size)
            for index in range(depth - 1, first - 1, -1):
                if nodes[index + 1].blocks[group] == NO_BLOCK:
                    return index
        return None

    def _tables(self, nodes: Sequence[Node], n_tokens: int) -> Tables:
        """Blocks of ``nodes`` after the root that a token at ``n_tokens`` or later sees."""
        tables = []
        for group, pool in enumerate(self.pools):
            first = min(len(nodes) - 1, first_block(n_tokens, pool.window, self.block_size))
            seen = [node.blocks[group] for node in nodes[1 + first :]]
            tables.append((*[NO_BLOCK] * first, *seen))
        return tuple(tables)

    def _forget(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            for group, block in _held(node):
                self.pools[group].forget((block,))


def _held(node: Node) -> Iterator[tuple[int, int]]:
    """Groups and blocks of a node."""
    return ((group, block) for group, block in enumerate(node.blocks) if block != NO_BLOCK)
