"""Requests that begin as another one did: full blocks are shared, the rest of one is copied."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from kvasir.core.groups import NO_BLOCK, first_block
from kvasir.core.request import Context
from kvasir.kv.prefix import Hit, PrefixCache
from kvasir.kv.table import BlockTable
from kvasir.sched.holds import Holds
from kvasir.sched.request import Request


@dataclass(frozen=True, slots=True)
class Parent:
    """What a fork may share, and whether more of it is being computed."""

    tokens: Sequence[int]
    table: BlockTable
    n_computed: int
    context: Context
    is_running: bool


class Forks:
    """Shared blocks are read only: a fork begins to write in a block of its own, into which the
    entries before it were copied (copy on write, at the moment of the fork)."""

    def __init__(self, cache: PrefixCache, holds: Holds, running: Callable[[int], Parent | None]):
        """``running``: what runs under an id."""
        self._cache = cache
        self._holds = holds
        self._running = running

    def better(self, request: Request, hit: Hit, n_tokens: int) -> tuple[Hit, int, bool]:
        """``hit`` of ``n_tokens``, or a longer one from the parent of ``request``; True when the
        parent is computing more."""
        parent = self._running(request.share.parent) or self._held(request.share.parent)
        limit = request.n_known - 1
        if parent is None or request.is_scoring or n_tokens >= limit:
            return hit, n_tokens, False
        if parent.context != request.share.context:
            return hit, n_tokens, False
        common = self._whole(common_prefix(request.tokens, parent.tokens, limit))
        n = self._whole(min(common, parent.n_computed))
        is_coming = parent.is_running and parent.n_computed < common
        if n <= n_tokens or not self._holds_all(parent.table, n):
            return hit, n_tokens, is_coming
        return self._fork(parent.table, hit, n), n, is_coming

    def _whole(self, n_tokens: int) -> int:
        """As many of them as a fork can begin after: a state is there after full blocks only."""
        if not any(group.state_bytes for group in self._cache.groups):
            return n_tokens
        return n_tokens - n_tokens % self._cache.block_size

    def _held(self, request_id: int) -> Parent | None:
        held = self._holds.get(request_id)
        if held is None:
            return None
        return Parent(held.tokens, held.table, held.n_computed, held.context, False)

    def _holds_all(self, table: BlockTable, n_tokens: int) -> bool:
        """Whether windowed groups still have what a token at ``n_tokens`` sees."""
        return all(
            table.at(i)[group] != NO_BLOCK
            for group, pool in enumerate(self._cache.pools)
            if pool.window
            for i in range(
                first_block(n_tokens, pool.window, self._cache.block_size),
                -(-n_tokens // self._cache.block_size),
            )
        )

    def _fork(self, table: BlockTable, hit: Hit, n_tokens: int) -> Hit:
        """Blocks of ``hit`` as far as it goes, then those of the parent."""
        size, depth = self._cache.block_size, hit.node.depth
        n_full, n_rows = divmod(n_tokens, size)
        tables = []
        for group, (pool, found) in enumerate(zip(self._cache.pools, hit.tables, strict=True)):
            first = first_block(n_tokens, pool.window, size) if pool.window else 0
            gone, known = min(first, n_full), max(first, depth)
            own = [table.at(i)[group] for i in range(known, n_full)]
            tables.append((*[NO_BLOCK] * gone, *found[first:depth], *own))
        source = table.at(n_full) if n_rows else ()
        return structs.replace(hit, tables=tuple(tables), source=source, n_rows=n_rows)


def common_prefix(a: Sequence[int], b: Sequence[int], limit: int) -> int:
    """Equal items at the start of both, at most ``limit``."""
    n = min(len(a), len(b), limit)
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])
