"""The prefix cache against an oracle that knows only prefixes, owners and an order."""

from __future__ import annotations

import random
from array import array

from kvasir.kv.index import NO_BLOCK, Node
from kvasir.kv.keys import Chain, chain_root
from kvasir.kv.prefix import Hit, PrefixCache
from kvasir.kv.table import BlockTable

SIZE = 2
N_BLOCKS = 10
MAX_TOKENS = 8
N_OPERATIONS = 1_000_000
Tokens = tuple[int, ...]


class Sequence:
    """One owner of blocks, and how far it told the cache of them."""

    def __init__(self, cache: PrefixCache, root: bytes, tokens: Tokens) -> None:
        self.tokens = tokens
        self.chain = Chain(root, array("I", tokens), SIZE)
        self.table = BlockTable(cache.pool, SIZE)
        self.node: Node | None = None
        self.root = root


class Oracle:
    """Contents are named by what they depend on: (root, all tokens up to the block's end)."""

    def __init__(self) -> None:
        self.known: dict[tuple[bytes, Tokens], int] = {}
        self.order: list[int] = []
        """Known blocks without owner, the next to go first."""
        self.refs = [0] * N_BLOCKS

    def hit(self, root: bytes, tokens: Tokens) -> tuple[list[int], int]:
        """Blocks of the longest known prefix, and the longest part of one more block."""
        blocks: list[int] = []
        n = 0
        while n + SIZE <= len(tokens) and (root, tokens[: n + SIZE]) in self.known:
            blocks.append(self.known[root, tokens[: n + SIZE]])
            n += SIZE
        rest = tokens[n : n + SIZE]
        for length in range(len(rest), 0, -1):
            for other, known in self.known:
                if (
                    other == root
                    and len(known) == n + SIZE
                    and known[: n + length] == tokens[: n + length]
                ):
                    return blocks, length
        return blocks, 0

    def share(self, block: int) -> None:
        if block in self.order:
            self.order.remove(block)
        self.refs[block] += 1

    def give_up(self, block: int) -> None:
        self.refs[block] -= 1
        if not self.refs[block] and block in self.known.values():
            self.order.append(block)

    def evict(self, n: int) -> None:
        for block in self.order[:n]:
            prefix = next(key for key, value in self.known.items() if value == block)
            del self.known[prefix]
        del self.order[:n]

    def drop(self, root: bytes, prefix: Tokens) -> None:
        gone = [k for k in self.known if k[0] == root and k[1][: len(prefix)] == prefix]
        for key in gone:
            block = self.known.pop(key)
            if block in self.order:
                self.order.remove(block)


class Game:
    """Random operations on both; every one is compared."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cache = PrefixCache(N_BLOCKS, SIZE)
        self.oracle = Oracle()
        self.roots = [chain_root("key", salt) for salt in ("", "other")]
        self.live: list[Sequence] = []
        self.n_hits = self.n_parts = self.n_evicted = self.n_shared = 0

    def play(self) -> None:
        choice = self.rng.random()
        if choice < 0.4 or not self.live:
            self.start()
        elif choice < 0.7:
            self.tell(self.rng.choice(self.live))
        elif choice < 0.98:
            self.end(self.live.pop(self.rng.randrange(len(self.live))))
        elif choice < 0.995:
            self.distrust(self.rng.choice(self.live))
        else:
            self.reset()
        pool, oracle = self.cache.pool, self.oracle
        assert pool.n_cached == len(oracle.order)
        assert pool.n_used == N_BLOCKS - oracle.refs.count(0)
        assert len(self.cache.index) == len(oracle.known)

    def start(self) -> None:
        rng, oracle, pool = self.rng, self.oracle, self.cache.pool
        tokens = tuple(rng.choices((0, 0, 1), k=rng.randint(1, MAX_TOKENS)))
        made = Sequence(self.cache, rng.choice(self.roots), tokens)
        hit = self.cache.find(made.chain, len(tokens) - 1)
        blocks, n_rows = oracle.hit(made.root, tokens[:-1])
        assert (list(hit.blocks), hit.n_rows) == (blocks, n_rows)
        self.check_source(made, hit)
        n_fresh = made.table.missing(len(tokens)) - len(blocks)
        n_idle = sum(block in oracle.order for block in blocks)
        assert self.cache.n_idle(hit) == n_idle
        if n_fresh + n_idle > pool.n_available:
            return
        self.n_hits += len(blocks)
        self.n_parts += n_rows > 0
        self.cache.adopt(hit, made.table)
        for block in blocks:
            oracle.share(block)
        if hit.source in oracle.order:
            oracle.order.remove(hit.source)
            oracle.order.append(hit.source)
        n_evicted = max(0, n_fresh - pool.n_free)
        self.n_evicted += n_evicted
        oracle.evict(n_evicted)
        made.table.grow(len(tokens))
        for i in range(len(blocks), len(made.table)):
            assert oracle.refs[made.table[i]] == 0
            assert made.table[i] not in oracle.known.values()
            oracle.share(made.table[i])
        made.node = hit.node
        self.live.append(made)

    def check_source(self, made: Sequence, hit: Hit) -> None:
        """Siblings may share equally much; whichever is taken begins with the wanted tokens."""
        if not hit.n_rows:
            assert hit.source == NO_BLOCK
            return
        n = len(hit.blocks) * SIZE
        held = next(key for key, block in self.oracle.known.items() if block == hit.source)
        assert held[0] == made.root
        assert held[1][: n + hit.n_rows] == made.tokens[: n + hit.n_rows]

    def tell(self, one: Sequence) -> None:
        """The next full block is computed."""
        if one.node is None or one.node.depth == len(one.tokens) // SIZE:
            return
        i, parent = one.node.depth, one.node
        own, is_live = one.table[i], parent.is_live
        one.node = self.cache.insert(parent, one.chain, one.table)
        assert (one.node is not None) == is_live
        if not is_live:
            return
        if self.rng.random() < 0.3:
            self.cache.index.prove(one.node)
        prefix = (one.root, one.tokens[: (i + 1) * SIZE])
        known = self.oracle.known.setdefault(prefix, own)
        assert one.table[i] == known
        if known != own:
            self.n_shared += 1
            self.oracle.share(known)
            self.oracle.give_up(own)

    def end(self, one: Sequence) -> None:
        for i in reversed(range(len(one.table))):
            self.oracle.give_up(one.table[i])
        one.table.release()
        assert self.cache.pool.cached() == tuple(self.oracle.order)

    def distrust(self, one: Sequence) -> None:
        node = one.node
        if node is None or node.is_proven or not node.is_live:
            return
        while node.parent is not None and not node.parent.is_proven:
            node = node.parent
        self.oracle.drop(one.root, one.tokens[: node.depth * SIZE])
        self.cache.drop_unproven(one.node or node)

    def reset(self) -> None:
        self.cache.reset()
        self.oracle.known.clear()
        self.oracle.order.clear()
        for one in self.live:
            one.node = None


def test_a_million_operations_agree_with_the_oracle() -> None:
    game = Game(7)
    for i in range(N_OPERATIONS):
        game.play()
        if i % 5000 == 0:
            game.cache.check()
    assert min(game.n_hits, game.n_parts, game.n_evicted, game.n_shared) > 10_000
    for one in game.live:
        game.end(one)
    game.cache.check()
    assert game.cache.pool.n_used == 0
    game.cache.reset()
    assert game.cache.pool.n_free == N_BLOCKS


def test_invariants_hold_after_every_operation() -> None:
    for seed in range(20):
        game = Game(seed)
        for _ in range(400):
            game.play()
            game.cache.check()
