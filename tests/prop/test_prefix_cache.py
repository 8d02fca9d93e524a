"""The prefix cache against an oracle that knows only prefixes, owners and orders."""

from __future__ import annotations

import random
from array import array

import pytest

from kvasir.core.groups import NO_BLOCK, STATE_WINDOW, KVGroup
from kvasir.core.request import Context
from kvasir.kv.cache import Hit, PrefixCache
from kvasir.kv.keys import KeyChain, chain_root
from kvasir.kv.radix import Node
from kvasir.kv.table import BlockTable
from tests.forms import IS_LONG
from tests.tables import forked

SIZE = 2
MAX_TOKENS = 8
MAX_LIVE = 6
"""Owners beyond which none is added that only holds."""
Tokens = tuple[int, ...]
Prefix = tuple[bytes, Tokens]
Groups = tuple[KVGroup, ...]

ONE = (KVGroup(10),)
TWO = (KVGroup(10), KVGroup(8, window=3))
WINDOW = (KVGroup(9, window=4),)
STATE = (KVGroup(10), KVGroup(8, STATE_WINDOW, 64))
THREE = (KVGroup(9), KVGroup(7, window=1), KVGroup(8, window=5))


class Sequence:
    """One owner of blocks, and how far it told the cache of them."""

    def __init__(self, cache: PrefixCache, root: bytes, tokens: Tokens) -> None:
        self.tokens = tokens
        self.chain = KeyChain(root, array("I", tokens), SIZE)
        self.table = BlockTable(cache.pools, SIZE)
        self.node: Node | None = None
        self.root = root


class Oracle:
    """Contents are named by what they depend on: (root, all tokens up to the block's end)."""

    def __init__(self, groups: Groups) -> None:
        self.groups = groups
        self.known: dict[Prefix, list[int]] = {}
        """Per group the block, or NO_BLOCK."""
        self.order: list[list[int]] = [[] for _ in groups]
        """Known blocks without owner, the next to go first."""
        self.refs = [[0] * group.n_blocks for group in groups]

    def hit(self, root: bytes, tokens: Tokens) -> int:
        """Full blocks of the longest prefix with all that a token after it sees."""
        n = 0
        while (n + 1) * SIZE <= len(tokens) and (root, tokens[: (n + 1) * SIZE]) in self.known:
            n += 1
        while not self.is_seen(root, tokens[: n * SIZE]):
            n -= 1
        return n

    def is_seen(self, root: bytes, tokens: Tokens) -> bool:
        return all(
            self.block(g, root, tokens, p // SIZE) != NO_BLOCK
            for g in range(len(self.groups))
            for p in self.seen(g, len(tokens))
        )

    def seen(self, group: int, n: int) -> range:
        """Positions before ``n`` that a token there sees."""
        window = self.groups[group].window
        return range(max(0, n - window + 1) if window else 0, n)

    def block(self, group: int, root: bytes, tokens: Tokens, index: int) -> int:
        return self.known[root, tokens[: (index + 1) * SIZE]][group]

    def parts(self, root: bytes, tokens: Tokens, n: int) -> list[tuple[int, list[int]]]:
        """What follows ``n`` known blocks: how many of the next tokens it has, and its blocks."""
        found = []
        for (other, known), blocks in self.known.items():
            if (
                other == root
                and len(known) == (n + 1) * SIZE
                and known[: n * SIZE] == tokens[: n * SIZE]
            ):
                rest = zip(known[n * SIZE :], tokens[n * SIZE :], strict=False)
                flags = [a == b for a, b in rest]
                found.append((flags.index(False) if False in flags else len(flags), blocks))
        return found

    def share(self, group: int, block: int) -> None:
        if block in self.order[group]:
            self.order[group].remove(block)
        self.refs[group][block] += 1

    def give_up(self, group: int, block: int) -> None:
        self.refs[group][block] -= 1
        if not self.refs[group][block] and self.prefix(group, block) is not None:
            self.order[group].append(block)

    def prefix(self, group: int, block: int) -> Prefix | None:
        return next((p for p, blocks in self.known.items() if blocks[group] == block), None)

    def n_free(self, group: int) -> int:
        return self.refs[group].count(0) - len(self.order[group])

    def evict(self, group: int, block: int) -> None:
        """The oldest cached block of a group goes; without a window its prefix with it. Of
        snapshots the one that is taken goes, whatever they are worth."""
        order = self.order[group]
        assert block in order[: None if self.groups[group].state_bytes else 1]
        order.remove(block)
        prefix = self.prefix(group, block)
        assert prefix is not None
        self.known[prefix][group] = NO_BLOCK
        if self.groups[group].window:
            self.prune(prefix)
        else:
            self.forget(prefix)

    def prune(self, prefix: Prefix) -> None:
        while prefix in self.known and set(self.known[prefix]) == {NO_BLOCK}:
            root, tokens = prefix
            if any(r == root and t[:-SIZE] == tokens for r, t in self.known):
                return
            del self.known[prefix]
            prefix = root, tokens[:-SIZE]

    def forget(self, prefix: Prefix) -> None:
        for order, block in zip(self.order, self.known.pop(prefix), strict=True):
            if block in order:
                order.remove(block)

    def drop(self, root: bytes, prefix: Tokens) -> None:
        for key in [k for k in self.known if k[0] == root and k[1][: len(prefix)] == prefix]:
            self.forget(key)
        self.prune((root, prefix[:-SIZE]))

    def take(self, group: int, block: int) -> None:
        """A fresh block is allocated."""
        if not self.n_free(group):
            self.evict(group, block)
        assert self.refs[group][block] == 0
        assert self.prefix(group, block) is None
        self.refs[group][block] = 1


class Game:
    """Random operations on both; every one is compared."""

    def __init__(self, groups: Groups, seed: int) -> None:
        self.rng = random.Random(seed)
        self.groups = range(len(groups))
        self.cache = PrefixCache(groups, SIZE, self.evicted)
        self.oracle = Oracle(groups)
        self.prefixes: dict[bytes, Prefix] = {}
        self.n_held = self.n_saved = 0
        self.roots = [chain_root("key", Context(salt)) for salt in ("", "other")]
        self.live: list[Sequence] = []
        self.n_hits = self.n_parts = self.n_evicted = self.n_shared = 0

    def play(self) -> None:
        choice = self.rng.random()
        if choice < 0.4 or not self.live:
            self.start()
        elif choice < 0.68:
            self.tell(self.rng.choice(self.live))
        elif choice < 0.7:
            self.hold(self.rng.choice(self.live))
        elif choice < 0.98:
            self.end(self.live.pop(self.rng.randrange(len(self.live))))
        elif choice < 0.995:
            self.distrust(self.rng.choice(self.live))
        else:
            self.reset()
        oracle = self.oracle
        for pool, order, refs in zip(self.cache.pools, oracle.order, oracle.refs, strict=True):
            assert pool.n_cached == len(order)
            assert pool.n_used == pool.n_blocks - refs.count(0)
        assert len(self.cache.tree) == len(oracle.known)

    def start(self) -> None:
        rng, oracle = self.rng, self.oracle
        tokens = tuple(rng.choices((0, 0, 1), k=rng.randint(1, MAX_TOKENS)))
        made = Sequence(self.cache, rng.choice(self.roots), tokens)
        hit = self.cache.find(made.chain, len(tokens) - 1)
        n = oracle.hit(made.root, tokens[:-1])
        assert hit.node.depth == n
        self.check_part(made, hit)
        self.check_tables(made, hit)
        named = [(*hit.tables[g], *hit.source[g : g + 1]) for g in self.groups]
        n_idle = [sum(b in oracle.order[g] for b in named[g]) for g in self.groups]
        enough = all(
            self.n_wanted(g, len(tokens), hit) + n_idle[g] <= self.cache.pools[g].n_available
            for g in self.groups
        )
        assert self.cache.fits(hit, len(tokens), 0) == enough
        if not enough:
            return
        self.n_hits += n
        self.n_parts += hit.n_part > 0
        if hit.source:
            self.hold_source(made, hit)
        made.table.adopt(hit.tables)
        for g in self.groups:
            for block in hit.tables[g]:
                if block != NO_BLOCK:
                    oracle.share(g, block)
        self.grow(made, len(tokens), full=True)
        self.grow(made, n * SIZE + hit.n_part + 1)
        made.node = hit.node
        self.live.append(made)

    def hold_source(self, made: Sequence, hit: Hit) -> None:
        """What a plan copies from stays for a while, whoever ends meanwhile."""
        held = Sequence(self.cache, made.root, made.tokens)
        held.table = self.cache.hold_source(hit)
        for g in self.groups:
            for block in (*hit.tables[g], hit.source[g]):
                if block != NO_BLOCK:
                    self.oracle.share(g, block)
        self.live.append(held)

    def n_wanted(self, group: int, n_tokens: int, hit: Hit) -> int:
        """Blocks to allocate: of a window what it spans, wherever it begins in a block."""
        window, n_blocks = self.oracle.groups[group].window, -(-n_tokens // SIZE)
        n_held = sum(block != NO_BLOCK for block in hit.tables[group])
        spans = max(len({p // SIZE for p in range(at, at + window)}) for at in range(SIZE))
        return max(1, (min(n_blocks, spans) if window else n_blocks) - n_held)

    def grow(self, one: Sequence, n_tokens: int, *, full: bool = False) -> None:
        before = [one.table.held(g) for g in self.groups]
        n_cached = [pool.n_cached for pool in self.cache.pools]
        (one.table.grow_full if full else one.table.grow)(n_tokens)
        self.n_evicted += sum(n_cached) - sum(pool.n_cached for pool in self.cache.pools)
        for g in self.groups:
            for block in one.table.held(g)[len(before[g]) :]:
                self.oracle.take(g, block)

    def check_part(self, made: Sequence, hit: Hit) -> None:
        """Siblings may share equally much; whichever is taken begins with the wanted tokens."""
        parts = self.oracle.parts(made.root, made.tokens[:-1], hit.node.depth)
        best = max((n for n, _ in parts), default=0)
        if any(group.state_bytes for group in self.oracle.groups):
            assert (hit.n_part, hit.source) == (0, ())  # there is no state inside a block
            return
        if hit.n_part:
            assert (best, list(hit.source)) in parts
            assert hit.n_part == best
            assert NO_BLOCK not in hit.source
        else:
            assert hit.source == ()
            assert not best or any(n == best and NO_BLOCK in blocks for n, blocks in parts)

    def check_tables(self, made: Sequence, hit: Hit) -> None:
        n_tokens = hit.node.depth * SIZE + hit.n_part
        for g in self.groups:
            seen = {p // SIZE for p in self.oracle.seen(g, n_tokens)}
            assert hit.tables[g] == tuple(
                self.oracle.block(g, made.root, made.tokens, i) if i in seen else NO_BLOCK
                for i in range(hit.node.depth)
            )

    def tell(self, one: Sequence) -> None:
        """The next full block is computed."""
        if one.node is None or one.node.depth == len(one.tokens) // SIZE:
            return
        i, parent = one.node.depth, one.node
        end = (i + 1) * SIZE
        if one.table.room() < end:
            held = [one.table.held(g) for g in self.groups]
            assert not one.table.try_grow(end)
            assert [one.table.held(g) for g in self.groups] == held
            return
        self.grow(one, end)
        own, is_live = one.table.at(i), parent.is_live
        one.node = self.cache.insert(parent, one.chain, one.table)
        assert (one.node is not None) == is_live
        if one.node is None:
            return
        self.prefixes[one.node.key] = (one.root, one.tokens[:end])
        if self.rng.random() < 0.3:
            self.cache.tree.prove(one.node)
        known = self.oracle.known.setdefault((one.root, one.tokens[:end]), list(own))
        for g in self.groups:
            known[g] = own[g] if known[g] == NO_BLOCK else known[g]
            assert one.table.at(i)[g] == known[g]
            if known[g] != own[g]:
                self.n_shared += 1
                self.oracle.share(g, known[g])
                self.oracle.give_up(g, own[g])
        self.give_back(one, end)

    def hold(self, one: Sequence) -> None:
        """A share of what is computed outlives its request, and is never told more."""
        if one.node is None or len(self.live) > MAX_LIVE:
            return
        n_tokens = one.node.depth * SIZE
        twin = Sequence(self.cache, one.root, one.tokens)
        for g in self.groups:
            for block in one.table.held(g):
                self.oracle.share(g, block)
        twin.table = forked(one.table)
        before = [twin.table.held(g) for g in self.groups]
        twin.table.trim(n_tokens)
        for g in self.groups:
            for block in reversed(before[g][len(twin.table.held(g)) :]):
                self.oracle.give_up(g, block)
        self.live.append(twin)
        self.n_held += 1

    def evicted(self, key: bytes, group: int, block: int) -> None:
        """What the disk tier is told: a block, while it still has what its name says."""
        assert self.oracle.known[self.prefixes[key]][group] == block
        assert self.cache.tree.by_block[group][block].is_proven
        self.n_saved += 1

    def give_back(self, one: Sequence, n_tokens: int) -> None:
        for g, group in enumerate(self.oracle.groups):
            if not group.window:
                continue
            seen = {p // SIZE for p in (*self.oracle.seen(g, n_tokens), n_tokens)}
            for i in range(min(min(seen), n_tokens // SIZE)):
                if one.table.at(i)[g] != NO_BLOCK:
                    self.oracle.give_up(g, one.table.at(i)[g])
        one.table.give_back(n_tokens)
        assert not one.table.gives_back(n_tokens)

    def end(self, one: Sequence) -> None:
        for g in self.groups:
            for block in reversed(one.table.held(g)):
                self.oracle.give_up(g, block)
        one.table.release()
        for g, pool in enumerate(self.cache.pools):
            found, expected = pool.cached(), tuple(self.oracle.order[g])
            if self.oracle.groups[g].state_bytes:
                found, expected = tuple(sorted(found)), tuple(sorted(expected))
            assert found == expected

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
        for order in self.oracle.order:
            order.clear()
        for one in self.live:
            one.node = None


@pytest.mark.parametrize(
    ("groups", "n_operations"),
    [(ONE, 400_000), (TWO, 300_000), (WINDOW, 100_000), (THREE, 100_000), (STATE, 100_000)],
    ids=["full", "full and window", "window", "full and two windows", "full and state"],
)
def test_operations_agree_with_the_oracle(groups: Groups, n_operations: int) -> None:
    """A million in the long form, a tenth of them else."""
    n_operations //= 1 if IS_LONG else 10
    game = Game(groups, 7)
    for i in range(n_operations):
        game.play()
        if i % 5000 == 0:
            game.cache.check()
    assert min(game.n_hits, game.n_evicted, game.n_shared) > n_operations // 200
    assert (game.n_parts > n_operations // 100) != (groups is STATE)
    assert min(game.n_held, game.n_saved) > n_operations // 1000
    for one in game.live:
        game.end(one)
    game.cache.check()
    assert [pool.n_used for pool in game.cache.pools] == [0] * len(groups)
    game.cache.reset()
    assert [pool.n_free for pool in game.cache.pools] == [group.n_blocks for group in groups]


@pytest.mark.parametrize("groups", [ONE, TWO, WINDOW, THREE, STATE])
def test_invariants_hold_after_every_operation(groups: Groups) -> None:
    for seed in range(8):
        game = Game(groups, seed)
        for _ in range(400):
            game.play()
            game.cache.check()
