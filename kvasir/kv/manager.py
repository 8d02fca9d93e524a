"""What a request may begin with, who holds which blocks, and who vouches for what is in them.

One question at the start (``match``: memory, another request's blocks, disk), one report of
progress (``commit``), one end. A block has any number of holders: running requests, ended ones that
are kept, and plans that copy from it. What has none stays cached while the prefix cache knows it.
"""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence

import msgspec

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import KvasirError
from kvasir.core.groups import NO_BLOCK
from kvasir.core.plan import Copy, Transfer
from kvasir.kv.cache import Hit, PrefixCache
from kvasir.kv.fork import fork
from kvasir.kv.holders import Holder, Holders
from kvasir.kv.keys import KeyChain, chain_root
from kvasir.kv.radix import Node
from kvasir.kv.table import BlockTable
from kvasir.kv.tier import Disk, DiskTier, OnDisk


class Match(msgspec.Struct, frozen=True):
    """What a waiting request would begin with."""

    hit: Hit
    n_queried: int
    """Tokens looked up."""
    n_tokens: int
    """Tokens that need not be computed."""
    fits: bool
    """There are blocks to start so, and those that are to be left."""
    n_loaded: int = 0
    """Those of them that come from disk."""
    is_coming: bool = False
    """A running request of this class or a higher one computes the block that comes next: what a
    lower class computes may take long, and is computed twice instead."""
    on_disk: OnDisk | None = None
    """What disk gives beyond; None while that is read."""


class KVCacheManager:
    """Decides over ids and numbers; plans say what is done to the blocks."""

    def __init__(
        self,
        config: SchedulerConfig,
        key_root: str,
        n_ready: Callable[[Holder], int],
        prefill_seconds: Callable[[int, int], float],
        disk: Disk | None,
        clock: Callable[[], float],
    ) -> None:
        """``n_ready``: tokens of a running request that are computed before the plan in the making.
        ``prefill_seconds(n_tokens, start)``: what it costs to compute tokens instead of loading
        them from ``disk``. ``clock``: seconds, monotonic."""
        groups, size = config.sizes.groups, config.sizes.block_size
        self.tier: DiskTier | None = None
        if disk is not None:
            windows, mode = [group.window for group in groups], config.preemption_mode
            self.tier = DiskTier(disk, windows, size, prefill_seconds, mode=mode, clock=clock)
        on_evict = None if self.tier is None else self.tier.evicted
        self.cache = PrefixCache(groups, size, on_evict, prefill_seconds)
        self.holders = Holders(clock)
        self.n_queried = 0
        self.n_hit = 0
        self._key_root = key_root
        self._n_ready = n_ready
        self._is_caching = config.enable_prefix_caching
        """What nobody holds stays; else requests share by forks alone."""
        self._has_windows = any(group.window for group in groups)
        self._has_states = any(group.state_bytes for group in groups)
        self._n_drafts = max((group.drafts for group in groups), default=0)
        self._nothing = self.cache.find(KeyChain(b"", (), size), 0)
        """For a request that there is nothing to find for."""
        self._coming: Counter[tuple[int, bytes]] = Counter()
        """By the class of who computes and the key."""
        self._loads: list[Transfer] = []
        self._copies: list[Copy] = []
        self._sources: deque[list[BlockTable]] = deque([[]])
        """What the copies of each uncommitted plan read; the last is of the plan in the making."""

    @property
    def is_loading(self) -> bool:
        """Blocks are on their way from disk."""
        return self.tier is not None and self.tier.is_loading

    def new_table(self) -> BlockTable:
        return BlockTable(self.cache.pools, self.cache.block_size)

    def may_match(self, holder: Holder) -> bool:
        """Whether ``match`` can give any tokens."""
        return self._is_caching or holder.asked.parent >= 0

    def match(self, holder: Holder, n_tokens: int, n_held: int, n_spare: int) -> Match:
        """What ``holder`` would begin with, ``n_tokens`` at most. It is to start with blocks for
        ``n_held`` tokens, and leave ``n_spare``; disk is asked when it could."""
        cache, size = self.cache, self.cache.block_size
        if not self.may_match(holder):
            fits = cache.fits(self._nothing, n_held, n_spare)
            return Match(self._nothing, 0, 0, fits, on_disk=OnDisk(0))
        hit = self._find(holder, n_tokens)
        fits = cache.fits(hit, n_held, n_spare)
        if hit.n_part and not fits:
            # the last block that it could have is the one that it would copy from
            hit = self._find(holder, hit.node.depth * size)
            fits = cache.fits(hit, n_held, n_spare)
        found, is_coming = self._fork(holder, hit, n_tokens)
        if found is not hit:
            n_found, none = cache.n_tokens(found), OnDisk(hit.node.depth)
            fits = cache.fits(found, n_held, n_spare)
            return Match(found, n_tokens, n_found, fits, is_coming=is_coming, on_disk=none)
        n_cachable, n_loaded = n_tokens if self._is_caching else 0, 0
        n_found, depth = cache.n_tokens(hit), hit.node.depth
        on_disk = self._on_disk(holder, hit, n_cachable, n_spare)
        if on_disk is not None and on_disk.depth > depth:
            n_found, n_loaded = on_disk.depth * size, (on_disk.depth - depth) * size
            depth = on_disk.depth
            hit = cache.extended(hit, self._chain(holder), depth)
            fits = cache.fits(hit, n_held, n_spare)
        if self._coming and (depth + 1) * size <= n_cachable:
            is_coming |= self._is_computing(holder, depth, max(depth, hit.reach) + 1)
        return Match(hit, n_cachable, n_found, fits, n_loaded, is_coming, on_disk)

    def n_cached(self, holder: Holder, n_tokens: int) -> int:
        """Tokens, of its first ``n_tokens``, that memory has for one that does not run."""
        return self.cache.n_tokens(self._find(holder, n_tokens))

    def start(self, holder: Holder, match: Match, n_held: int) -> None:
        """Give ``holder`` what was matched, and all blocks of its first ``n_held`` tokens, of a
        windowed group the next one."""
        hit, table = match.hit, holder.table
        if self._has_states:
            # the next choice, or turn, begins after the first; prefixes branch at the second
            n_known, size = len(holder.tokens), self.cache.block_size
            borders = {(n_known - 1) // size, hit.reach, match.n_tokens // size}
            table.leave_snapshots(n_known, borders)
        if hit.n_part:
            self._sources[-1].append(self.cache.hold_source(hit))
        table.adopt(hit.tables)
        table.grow_full(n_held)
        table.grow(match.n_tokens + 1)
        self.holders.add(holder)
        holder.vouched.news_at = 0
        self.n_queried += match.n_queried
        self.n_hit += match.n_tokens
        node = self._load(holder, match)
        if self._is_caching:
            holder.vouched.node = node
            self._expect(holder)
        if hit.n_part:
            self._copies.append(Copy(hit.source, table.at(len(hit.tables[0])), hit.n_part))

    def take_transfers(
        self,
    ) -> tuple[tuple[Transfer, ...], tuple[Transfer, ...], tuple[Copy, ...]]:
        """Saves, loads and copies of the plan that is made. What its copies read is held until
        ``committed``."""
        saves = () if self.tier is None else self.tier.take_saves()
        loads, copies = tuple(self._loads), tuple(self._copies)
        self._loads.clear()
        self._copies.clear()
        self._sources.append([])
        return saves, loads, copies

    def committed(self) -> None:
        """The oldest plan has run."""
        for table in self._sources.popleft():
            table.release()

    def commit(self, holder: Holder, n_tokens: int, *, is_proven: bool) -> None:
        """The first ``n_tokens`` of a running request are computed and will not be written again:
        what is full is vouched for, and what windows have left is given back.

        ``is_proven``: logits after them were finite.
        """
        vouched, before = holder.vouched, holder.vouched.node
        self._vouch(holder, n_tokens, is_proven)
        if self._has_windows:
            vouched.news_at = min(vouched.news_at, holder.table.give_back(n_tokens))
        node = vouched.node
        if self._has_states and before is not None and node is not None and node is not before:
            self.cache.supersede(before, node, holder.table)

    def distrust(self, holder: Holder) -> None:
        """The logits of a request were not finite: forget its blocks that nobody vouches for."""
        if holder.vouched.node is not None:
            self.cache.drop_unproven(holder.vouched.node)

    def end(self, holder: Holder, n_kept: int | None = None) -> None:
        """A request runs no more: its blocks go, but for those of its first ``n_kept`` tokens, if
        it is kept."""
        node, holder.vouched.node = holder.vouched.node, None
        self._expect(holder)
        if n_kept is None:
            self.holders.remove(holder)
            return
        self.holders.keep(holder, n_kept)
        while self._has_states and node is not None and node.is_live and node.parent is not None:
            if holder.table.hold_snapshot(node.depth, node.blocks):
                break
            node = node.parent

    def forget(self, holder: Holder) -> None:
        """A waiting request will not start."""
        if self.tier is not None:
            self.tier.forget(holder)

    def unsaved(self) -> Iterator[Transfer]:
        """Cached blocks that are not on disk. The cache must not change meanwhile."""
        return iter(()) if self.tier is None else self.tier.unsaved(self.cache.cached())

    def reset(self) -> None:
        """Forget all that is cached, and let go of what is kept. What runs goes on, and tells the
        cache nothing more."""
        while self.holders.reclaim():
            continue
        self.cache.reset()
        if self.tier is not None:
            self.tier.reset()
        for holder in self.holders:
            holder.vouched.node = None
            self._expect(holder)

    def check(self, running: Sequence[Holder]) -> None:
        """Raises KvasirError unless blocks are held by ``running``, those who are kept and plans,
        and the running ones hold the blocks that they made known."""
        self.cache.check()
        if set(running) != {holder for holder in self.holders if holder.until is None}:
            raise KvasirError(f"{len(running)} requests run, others hold blocks")
        keys = [(x.rank, x.vouched.coming) for x in running if x.vouched.coming]
        if +self._coming != Counter(keys):
            raise KvasirError("the blocks being computed are not those of the running requests")
        tables = [holder.table for holder in self.holders]
        tables += [table for sources in self._sources for table in sources]
        for group, pool in enumerate(self.cache.pools):
            held = {block for table in tables for block in table.held(group)}
            if len(held) != pool.n_used:
                raise KvasirError(
                    f"requests and plans hold {len(held)} blocks, {pool.n_used} are used"
                )
        for holder in running:
            _check_known(holder)

    def _chain(self, holder: Holder) -> KeyChain:
        if holder.vouched.chain is None:
            root, size = chain_root(self._key_root, holder.asked.context), self.cache.block_size
            holder.vouched.chain = KeyChain(root, holder.tokens, size, holder.asked.media)
        return holder.vouched.chain

    def _find(self, holder: Holder, n_tokens: int) -> Hit:
        return self.cache.find(self._chain(holder), n_tokens if self._is_caching else 0)

    def _is_computing(self, holder: Holder, first: int, stop: int) -> bool:
        """Whether one of its class, or a higher one, computes one of its blocks [first, stop)."""
        chain = self._chain(holder)
        keys = chain.keys(min(stop, chain.n_full))[first:stop]
        ranks = range(holder.rank + 1)
        return any([(rank, key) in self._coming for key in keys for rank in ranks])

    def _fork(self, holder: Holder, hit: Hit, n_tokens: int) -> tuple[Hit, bool]:
        """``hit``, or what the parent has more; whether that computes more."""
        parent = self.holders.get(holder.asked.parent)
        if parent is None or self.cache.n_tokens(hit) >= n_tokens:
            return hit, False
        # its state may lack the last ones
        n_ready = max(0, self._n_ready(parent) - self._n_drafts)
        return fork(self.cache, hit, parent, n_ready, holder, n_tokens)

    def _on_disk(self, holder: Holder, hit: Hit, n_tokens: int, n_spare: int) -> OnDisk | None:
        depth, n_full = hit.node.depth, n_tokens // self.cache.block_size
        if self.tier is None or depth >= n_full or not self.cache.fits(hit, n_tokens + 1, n_spare):
            return OnDisk(depth)
        chain, was_preempted = self._chain(holder), holder.n_preempted > 0
        return self.tier.find(
            holder, chain, depth, n_full, was_preempted=was_preempted, reach=hit.reach
        )

    def _load(self, holder: Holder, match: Match) -> Node | None:
        """What disk gave becomes known, as if it had been computed; the last node. What memory has
        of it already, past a gap in a windowed group, is shared and not loaded."""
        node, on_disk, table = match.hit.node, match.on_disk, holder.table
        if self.tier is None or on_disk is None:
            return node
        own = {i: table.at(i) for i, _, _ in on_disk.names}
        chain = self._chain(holder)
        last = self.cache.extend(node, chain, table, on_disk.depth, is_proven=True)
        loads = [
            Transfer(name, g, own[i][g])
            for i, g, name in on_disk.names
            if table.at(i)[g] == own[i][g]
        ]
        self.tier.load(holder, on_disk, {load.name for load in loads})
        self._loads.extend(loads)
        return last

    def _vouch(self, holder: Holder, n_tokens: int, is_proven: bool) -> None:
        vouched, size = holder.vouched, self.cache.block_size
        node, chain = vouched.node, vouched.chain
        if node is None or chain is None:
            vouched.news_at = sys.maxsize
            return
        if node.depth < n_tokens // size:
            n_full = min(n_tokens // size, chain.n_full)
            last = vouched.node = self.cache.extend(node, chain, holder.table, n_full)
            self._expect(holder)
            if last is None:
                return
            node = last
        if is_proven and not node.is_proven:
            self.cache.tree.prove(node)
        if node.is_proven:
            vouched.news_at = (node.depth + 1) * size

    def _expect(self, holder: Holder) -> None:
        """Others may wait for the next block, while it can be named."""
        coming, rank, vouched = self._coming, holder.rank, holder.vouched
        if vouched.coming:
            coming[rank, vouched.coming] -= 1
            if not coming[rank, vouched.coming]:
                del coming[rank, vouched.coming]
            vouched.coming = b""
        node, chain = vouched.node, vouched.chain
        if node is not None and chain is not None and (depth := node.depth) < chain.n_full:
            vouched.coming = own = chain.keys(depth + 1)[depth]
            coming[rank, own] += 1


def _check_known(holder: Holder) -> None:
    """Raises KvasirError unless ``holder`` has the blocks that it made known."""
    node = holder.vouched.node
    while node is not None and node.is_live and node.parent is not None:
        held = holder.table.full(node.depth - 1)
        pairs = zip(held, node.blocks, strict=True)
        if any(own not in (known, NO_BLOCK) for own, known in pairs):
            raise KvasirError(f"request {holder.id} holds {held}, not {node.blocks}")
        node = node.parent
