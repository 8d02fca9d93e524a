"""Beginning as another request did: full blocks are shared, the rest of one is copied.

Shared blocks are read only: a fork begins to write in a block of its own, into which the entries
before it were copied (copy on write, at the moment of the fork).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import zip_longest

from msgspec import structs

from kvasir.core.groups import NO_BLOCK, first_block
from kvasir.core.tiles import Media
from kvasir.kv.cache import Hit, PrefixCache
from kvasir.kv.holders import Holder
from kvasir.kv.table import BlockTable


def fork(
    cache: PrefixCache, hit: Hit, parent: Holder, n_ready: int, holder: Holder, n_most: int
) -> tuple[Hit, bool]:
    """``hit``, or a longer beginning of at most ``n_most`` tokens of ``holder`` from ``parent``,
    of which ``n_ready`` are computed; True when the parent is computing more."""
    if parent.asked.context != holder.asked.context:
        return hit, False
    n_most = min(n_most, common_media(holder.asked.media, parent.asked.media))
    common = cache.whole(common_prefix(holder.tokens, parent.tokens, n_most))
    n = cache.whole(min(common, n_ready))
    is_coming = parent.until is None and n_ready < common
    if n <= cache.n_tokens(hit) or not _has_all(cache, parent.table, n):
        return hit, is_coming
    return _share(cache, hit, parent.table, n), is_coming


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Equal items at the start of both, at most ``limit``."""
    n = min(len(a), len(b), limit)
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def common_media(a: Sequence[Media], b: Sequence[Media]) -> int:
    """Tokens before the first that stands for something in one and not for the same in the
    other."""
    for one, other in zip_longest(a, b):
        if one is None:
            return other.start
        if other is None:
            return one.start
        if (one.start, one.n_tokens, one.digest) != (other.start, other.n_tokens, other.digest):
            return min(one.start, other.start)
    return sys.maxsize


def _has_all(cache: PrefixCache, table: BlockTable, n_tokens: int) -> bool:
    """Whether windowed groups still have what a token at ``n_tokens`` sees."""
    size = cache.block_size
    return all(
        table.full(i)[group] != NO_BLOCK
        for group, pool in enumerate(cache.pools)
        if pool.window
        for i in range(first_block(n_tokens, pool.window, size), -(-n_tokens // size))
    )


def _share(cache: PrefixCache, hit: Hit, table: BlockTable, n_tokens: int) -> Hit:
    """Blocks of ``hit`` as far as it goes, then those of the parent."""
    size, depth = cache.block_size, hit.node.depth
    n_full, n_part = divmod(n_tokens, size)
    tables = []
    for group, (pool, found) in enumerate(zip(cache.pools, hit.tables, strict=True)):
        first = first_block(n_tokens, pool.window, size)
        gone, known = min(first, n_full), max(first, depth)
        own = [table.at(i)[group] for i in range(known, n_full)]
        tables.append((*[NO_BLOCK] * gone, *found[first:depth], *own))
    source = table.at(n_full) if n_part else ()
    return structs.replace(hit, tables=tuple(tables), source=source, n_part=n_part)
