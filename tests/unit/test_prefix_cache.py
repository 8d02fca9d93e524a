"""Keys, hits and order of the prefix cache, by single cases; and what a lookup costs."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from hashlib import blake2b

import pytest

from kvasir.core.errors import KvasirError
from kvasir.core.groups import NO_BLOCK, KVGroup
from kvasir.core.request import Context
from kvasir.core.tiles import media_at
from kvasir.kv.cache import Hit, PrefixCache
from kvasir.kv.keys import KeyChain, chain_root
from kvasir.kv.table import BlockTable

ROOT = chain_root("engine", Context())


def chain(tokens: Sequence[int], root: bytes = ROOT, size: int = 4) -> KeyChain:
    return KeyChain(root, tokens, size)


def cache_of(n_blocks: int, size: int) -> PrefixCache:
    """One group that keeps every position."""
    return PrefixCache((KVGroup(n_blocks),), size)


def fill(cache: PrefixCache, tokens: Sequence[int], root: bytes = ROOT) -> BlockTable:
    """A sequence of its own blocks, all full ones known."""
    table = BlockTable(cache.pools, cache.block_size)
    table.grow(len(tokens))
    keys = chain(tokens, root, cache.block_size)
    node = cache.find(keys, 0).node
    for _ in range(keys.n_full):
        new = cache.insert(node, keys, table)
        assert new is not None
        node = new
    return table


def find(cache: PrefixCache, tokens: Sequence[int], root: bytes = ROOT) -> Hit:
    return cache.find(chain(tokens, root, cache.block_size), len(tokens))


def test_keys_depend_on_everything_before() -> None:
    tokens = list(range(12))
    keys = chain(tokens).keys(3)
    assert len(set(keys)) == 3
    assert chain([9, *tokens[1:]]).keys(3)[2] != keys[2]
    assert chain([*tokens[:11], 99]).keys(3)[:2] == list(keys[:2])
    roots = [
        ROOT,
        chain_root("other", Context()),
        chain_root("engine", Context("salt")),
        chain_root("engine", Context(adapter="salt")),
    ]
    assert len({chain(tokens, root).keys(1)[0] for root in roots}) == len(roots)


def test_keys_depend_on_images_from_the_block_where_they_begin() -> None:
    tokens, image = list(range(16)), b"image"
    plain = chain(tokens).keys(4)
    found = {
        (start, n, pixels): KeyChain(ROOT, tokens, 4, (media_at(start, n, pixels),)).keys(4)
        for start, n, pixels in ((6, 5, image), (6, 5, b"other"), (6, 4, image), (7, 5, image))
    }
    for keys in found.values():
        assert keys[0] == plain[0]
        assert keys[1] != plain[1]
    assert len({keys[1] for keys in found.values()}) == 3  # the third ends in another block
    assert len({keys[2] for keys in found.values()}) == 4
    side = (media_at(4, 4, image), media_at(8, 4, image))
    both = KeyChain(ROOT, tokens, 4, side)
    assert both.block(1)[1][:16] == both.block(2)[1][:16] == b"\xff" * 16
    assert len(set(both.keys(4))) == 4


def test_no_part_of_a_block_is_found_by_what_is_no_word() -> None:
    """As many placeholders, of another image: as far as the words before it."""
    cache, tokens = cache_of(8, 8), [1, 2, 3, 7, 7, 7, 4, 5, 6]
    one, other = (KeyChain(ROOT, tokens, 8, (media_at(3, 3, x),)) for x in (b"one", b"other"))
    table = BlockTable(cache.pools, 8)
    table.grow(8)
    assert cache.insert(cache.find(one, 0).node, one, table) is not None
    assert cache.find(other, 9).n_part == 3
    assert cache.find(one, 7).n_part == 3
    assert cache.find(one, 9).node.depth == 1
    assert cache.find(chain(tokens, size=8), 9).n_part == 3
    twin = BlockTable(cache.pools, 8)
    twin.grow(8)
    assert cache.insert(cache.find(other, 0).node, other, twin) is not None
    cache.check()
    twin.release()
    table.release()
    cache.check()


def test_a_key_is_blake2b_of_the_key_before_and_the_tokens() -> None:
    """Named in files: another key loses what disk has."""
    first, second = (struct.pack("<4I", *range(i, i + 4)) for i in (0, 4))
    key = blake2b(ROOT + first, digest_size=32).digest()
    keys = [key, blake2b(key + second, digest_size=32).digest()]
    at_once, one_by_one = chain(range(9)), chain(range(9))
    assert at_once.keys(2) == keys
    assert [one_by_one.block(i) for i in (0, 1, 0)] == [
        (keys[0], first),
        (keys[1], second),
        (keys[0], first),
    ]
    assert chain(range(9)).block(1) == (keys[1], second)


def test_blocks_without_owner_are_idle() -> None:
    cache = cache_of(8, 4)
    table = fill(cache, range(12))
    pool, blocks = cache.pools[0], table.held(0)
    assert pool.n_idle(blocks) == 0
    table.trim(4)
    assert pool.n_idle(blocks) == 2
    assert pool.n_idle(()) == 0


def test_a_table_tells_what_changed_once() -> None:
    cache = PrefixCache((KVGroup(9), KVGroup(9, window=6)), 4)
    table = BlockTable(cache.pools, 4)
    table.grow(9)
    first, window = table.held(0), table.held(1)
    assert table.take_news() == [(0, 0, tuple(first)), (1, 0, tuple(window))]
    assert table.take_news() == []
    table.grow(13)
    table.give_back(10)
    other = BlockTable(cache.pools, 4)
    other.grow(1)
    table.replace(0, 0, other.at(0)[0])
    news = [(0, 3, table.at(3)[:1]), (1, 3, table.at(3)[1:])]
    assert table.take_news() == [*news, (1, 0, (NO_BLOCK,)), (0, 0, other.at(0)[:1])]
    table.grow(17)
    table.release()
    assert table.take_news() == []


def test_keys_follow_tokens_that_grow() -> None:
    tokens = list(range(6))
    growing = chain(tokens)
    assert growing.n_full == 1
    first = growing.keys(1)[0]
    tokens += [6, 7, 8]
    assert growing.n_full == 2
    assert list(growing.keys(2)) == [first, chain(range(9)).keys(2)[1]]


def test_full_blocks_and_a_part_of_the_next() -> None:
    cache = cache_of(8, 4)
    table = fill(cache, range(12))
    assert find(cache, [0, 1, 2]) == Hit(find(cache, []).node, ((),), table.at(0), 3)
    hit = find(cache, [0, 1, 2, 3, 4, 5, 99, 7, 8])
    assert (hit.tables, hit.source, hit.n_part) == ((table.at(0),), table.at(1), 2)
    hit = find(cache, range(14))
    assert (hit.tables, hit.source, hit.n_part) == (((0, 1, 2),), (), 0)
    assert find(cache, [7, 1, 2]).n_part == 0
    assert find(cache, range(8), chain_root("engine", Context("salt"))).tables == ((),)


def test_the_sibling_with_the_longest_common_part_is_taken() -> None:
    cache = cache_of(32, 4)
    tables = {tail: fill(cache, [1, 2, 3, 4, *tail]) for tail in SIBLINGS}
    for tail, table in tables.items():
        hit = find(cache, [1, 2, 3, 4, *tail[:3], 77])
        assert (hit.source, hit.n_part) == (table.at(1), 3)
    assert find(cache, [1, 2, 3, 4, 5, 8, 1, 1]).n_part == 2
    assert find(cache, [1, 2, 3, 4, 6, 0, 0, 0]).n_part == 0
    assert len(cache.tree) == 1 + len(SIBLINGS)


SIBLINGS = [(5, 5, 5, 5), (5, 5, 6, 5), (5, 8, 5, 5), (300, 5, 5, 5), (70_000, 5, 5, 5)]


def test_equal_blocks_become_one() -> None:
    cache = cache_of(8, 4)
    first, second = fill(cache, range(8)), fill(cache, range(8))
    assert second.held(0) == first.held(0)
    assert cache.pools[0].n_used == 2
    first.release()
    assert (cache.pools[0].n_used, cache.pools[0].n_cached) == (2, 0)
    second.release()
    assert (cache.pools[0].n_used, cache.pools[0].n_cached, cache.pools[0].n_free) == (0, 2, 6)
    cache.check()


def test_the_leaf_that_was_given_up_first_goes_first() -> None:
    cache = cache_of(4, 4)
    old, new = fill(cache, [*range(8)]), fill(cache, [50, 51, 52, 53, 54, 55, 56, 57])
    old.release()
    new.release()
    assert cache.pools[0].cached() == (1, 0, 3, 2)
    again = BlockTable(cache.pools, 4)
    again.adopt(find(cache, range(8)).tables)
    again.release()
    assert cache.pools[0].cached() == (3, 2, 1, 0)
    taken = BlockTable(cache.pools, 4)
    taken.grow(12)
    assert taken.held(0) == [3, 2, 1]
    assert find(cache, range(8)).tables == ((0,),)
    cache.check()


def test_a_block_that_others_follow_is_not_evicted() -> None:
    cache = cache_of(4, 4)
    table = fill(cache, range(8))
    with pytest.raises(KvasirError, match="block 0 is followed by 1 cached blocks"):
        cache.tree.evict(0, *table.at(0))


def test_reset_forgets_and_frees() -> None:
    cache = cache_of(4, 4)
    used, gone = fill(cache, range(4)), fill(cache, [9, 9, 9, 9])
    gone.release()
    cache.reset()
    cache.check()
    assert (cache.pools[0].n_free, cache.pools[0].n_used, len(cache.tree)) == (3, 1, 0)
    used.release()
    assert cache.pools[0].n_free == 4


def test_only_what_gave_finite_logits_survives_others_that_did_not() -> None:
    cache = cache_of(8, 4)
    good = fill(cache, range(8))
    proven = find(cache, range(8)).node
    cache.tree.prove(proven)
    bad = fill(cache, [*range(8), 90, 91, 92, 93, 94, 95, 96, 97])
    cache.drop_unproven(find(cache, [*range(8), 90, 91, 92, 93, 94, 95, 96, 97]).node)
    cache.drop_unproven(proven)
    cache.check()
    assert len(cache.tree) == 2
    bad.release()
    good.release()
    assert (cache.pools[0].n_cached, cache.pools[0].n_free) == (2, 6)


def test_what_follows_a_dropped_block_stays_unknown() -> None:
    cache = cache_of(8, 4)
    table = BlockTable(cache.pools, 4)
    table.grow(8)
    keys = chain(range(8))
    node = cache.insert(cache.find(keys, 0).node, keys, table)
    assert node is not None
    cache.drop_unproven(node)
    assert cache.insert(node, keys, table) is None
    assert len(cache.tree) == 0


def test_blocks_that_forks_share_do_not_follow_a_twin() -> None:
    """Two compute the same at once, and one was forked before it hears of its twin: the fork would
    hold the second block, and nobody the first one that is known."""
    cache = cache_of(8, 4)
    keys = chain(range(8))
    known = fill(cache, range(4))
    twin, fork = BlockTable(cache.pools, 4), BlockTable(cache.pools, 4)
    twin.grow(8)
    fork.adopt(tuple(tuple(twin.held(group)) for group in range(1)))
    root = cache.find(keys, 0).node
    assert cache.insert(root, keys, twin) is None
    known.release()
    twin.release()
    cache.check()
    assert cache.insert(root, keys, fork) is not None  # it is alone now
    assert fork.at(0) == tuple(find(cache, range(4)).node.blocks)
    fork.release()
    cache.check()
    cache.evict(0, cache.pools[0].cached()[0])


def test_a_lookup_costs_little() -> None:
    """About 2 ms for 32k tokens, keys included, on one core; ten times that fails."""
    cache = cache_of(2048, 16)
    tokens = [i % 5000 for i in range(32_768)]
    fill(cache, tokens)
    hit_seconds = min(_seconds(cache, tokens) for _ in range(5))
    assert len(find(cache, tokens).tables[0]) == 2048
    assert hit_seconds < 0.02
    assert min(_seconds(cache, [5000, *tokens]) for _ in range(5)) < 0.02


def test_many_siblings_cost_little() -> None:
    cache = cache_of(20_000, 16)
    for i in range(20_000):
        fill(cache, [1] * 14 + [i % 200, i // 200])
    tokens = [1] * 14 + [7, 101]
    assert find(cache, tokens).n_part == 15
    assert min(_seconds(cache, tokens) for _ in range(5)) < 0.001


def _seconds(cache: PrefixCache, tokens: Sequence[int]) -> float:
    began = time.perf_counter()
    find(cache, tokens)
    return time.perf_counter() - began
