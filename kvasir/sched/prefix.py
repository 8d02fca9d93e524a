"""When the prefix cache is asked, and when a computed block becomes known to it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from kvasir.config.resolved import SchedulerConfig
from kvasir.core.errors import KvasirError
from kvasir.core.groups import NO_BLOCK
from kvasir.core.plan import Copy, Transfer
from kvasir.kv.index import Node
from kvasir.kv.keys import Chain, chain_root
from kvasir.kv.prefix import Hit, PrefixCache
from kvasir.kv.table import BlockTable
from kvasir.kv.tier import Ahead, DiskTier
from kvasir.sched.forks import Forks
from kvasir.sched.request import Request

MAX_WAITS = 256
"""Plans that a request waits, in all, for others that compute what it needs next."""


@dataclass(slots=True)
class _Lease:
    """What a running request has in the cache."""

    chain: Chain
    node: Node | None
    """Of its last block that is known; None when it tells the cache nothing more."""
    rank: int
    """Of the class of the request."""
    computing: bytes = b""
    """Key of the full block that comes next; empty when its tokens are not all known."""


class Found(msgspec.Struct, frozen=True):
    """What a waiting request would begin with."""

    chain: Chain
    hit: Hit
    n_queried: int
    """Tokens looked up."""
    n_tokens: int
    """Tokens of the hit."""
    is_coming: bool
    """A running request of this class or a higher one computes the block that comes next: what a
    lower class computes may take long, and is computed twice instead."""
    ahead: Ahead | None = None
    """What disk gives beyond; None while that is read."""


class Brought(msgspec.Struct, frozen=True):
    """How the entries that a request begins with come to its blocks."""

    loads: tuple[Transfer, ...]
    copies: tuple[Copy, ...] = ()
    sources: tuple[BlockTable, ...] = ()
    """A share of what the copies read, to be held until their plan is committed."""


class Prefixes:
    """Not asked for a prompt whose logprobs are wanted: those need every token computed."""

    def __init__(
        self,
        cache: PrefixCache,
        key_root: str,
        forks: Forks,
        config: SchedulerConfig,
        tier: DiskTier | None = None,
    ) -> None:
        self.cache = cache
        self.tier = tier
        self.holds_all = config.sharing.kv_policy == "contiguous"
        """Blocks for the longest answer are taken when a request starts."""
        self._forks = forks
        self.n_queried = 0
        self.n_hit = 0
        self._key_root = key_root
        self._enabled = config.enable_prefix_caching
        none = Chain(b"", (), cache.block_size)
        self._nothing = Found(none, cache.find(none, 0), 0, 0, is_coming=False, ahead=Ahead(0))
        """Of a request that there is nothing to find for."""
        self._leases: dict[Request, _Lease] = {}
        self._computing: Counter[tuple[int, bytes]] = Counter()
        """By the class of who computes and the key."""

    def find(self, request: Request, n_spare: int) -> tuple[Found, bool]:
        """Stops one token before the last known one: its logits are wanted. Whether ``request`` can
        start so and leave ``n_spare`` blocks; disk is asked when it could."""
        cache, share = self.cache, request.share
        n_held = self.n_held(request)
        if not self.may_find(request):
            return self._nothing, cache.fits(self._nothing.hit, n_held, n_spare)
        chain = share.chain or self._chain(request)
        n_tokens = 0 if request.is_scoring or not self._enabled else request.n_known - 1
        hit = cache.find(chain, n_tokens)
        fits = cache.fits(hit, n_held, n_spare)
        if hit.n_rows and not fits:
            # the last block that it could have is the one that it would copy from
            hit = cache.find(chain, hit.node.depth * cache.block_size)
            fits = cache.fits(hit, n_held, n_spare)
        is_forking = False
        if share.parent >= 0 and not request.is_scoring:
            fork, n_shared, is_forking = self._forks.better(request, hit, self._n_tokens(hit))
            if fork is not hit:
                none_ahead = Ahead(hit.node.depth)
                found = Found(chain, fork, request.n_known - 1, n_shared, is_forking, none_ahead)
                return found, cache.fits(fork, n_held, n_spare)
        depth = hit.node.depth
        ahead = self._ahead(request, chain, hit, n_tokens, n_spare)
        if ahead is not None and ahead.depth > depth:
            depth = ahead.depth
            hit = cache.extended(hit, depth)
            fits = cache.fits(hit, n_held, n_spare)
        is_coming = is_forking
        if self._computing and (depth + 1) * cache.block_size <= n_tokens:
            is_coming |= self._is_computed(request.rank, chain.keys(depth + 1)[depth])
        return Found(chain, hit, n_tokens, self._n_tokens(hit, depth), is_coming, ahead), fits

    def n_held(self, request: Request) -> int:
        """Tokens that need blocks when it starts."""
        if not self.holds_all:
            return request.n_known
        return max(request.n_known, request.n_prompt + request.max_outputs - 1)

    def may_find(self, request: Request) -> bool:
        """Whether ``find`` can give any tokens."""
        return self._enabled or request.share.parent >= 0

    def n_cached(self, request: Request) -> int:
        """Tokens that memory holds of ``request``, which does not run."""
        chain = request.share.chain or self._chain(request)
        n_tokens = 0 if request.is_scoring or not self._enabled else request.n_known - 1
        hit = self.cache.find(chain, n_tokens)
        return hit.node.depth * self.cache.block_size + hit.n_rows

    def n_loaded(self, found: Found) -> int:
        """Tokens of the hit that come from disk."""
        if found.ahead is None:
            return 0
        return (found.ahead.depth - found.hit.node.depth) * self.cache.block_size

    def start(self, request: Request, found: Found) -> Brought:
        """Give ``request`` all blocks of its known tokens, of a windowed group the next one; the
        copy that completes the hit, or the loads from disk."""
        hit = found.hit
        sources = (self.cache.hold_source(hit),) if hit.n_rows else ()
        request.table.adopt(hit.tables)
        request.table.grow_full(self.n_held(request))
        request.table.grow(found.n_tokens + 1)
        request.begin(found.n_tokens)
        self.n_queried += found.n_queried
        self.n_hit += found.n_tokens
        loads, node = self._load(request, found)
        if self._enabled:
            lease = self._leases[request] = _Lease(found.chain, node, request.rank)
            self._expect(lease)
        if not hit.n_rows:
            return Brought(loads)
        copy = Copy(hit.source, request.table.at(len(hit.tables[0])), hit.n_rows)
        return Brought(loads, (copy,), sources)

    def commit(self, request: Request, n_tokens: int, *, is_proven: bool) -> None:
        """The first ``n_tokens`` of a running request are computed and will not be written again.

        ``is_proven``: logits after them were finite.
        """
        lease = self._leases.get(request)
        if lease is None or lease.node is None:
            request.news_at = sys.maxsize
            return
        node, size = lease.node, self.cache.block_size
        if node.depth < n_tokens // size:
            n_full = min(n_tokens // size, lease.chain.n_full)
            last = lease.node = self.cache.extend(node, lease.chain, request.table, n_full)
            self._expect(lease)
            if last is None:
                return
            node = last
        if is_proven and not node.is_proven:
            self.cache.index.prove(node)
        if node.is_proven:
            request.news_at = (node.depth + 1) * size

    def distrust(self, request: Request) -> None:
        """The logits of a request were not finite: forget its blocks that nobody vouches for."""
        lease = self._leases.get(request)
        if lease is not None and lease.node is not None:
            self.cache.drop_unproven(lease.node)

    def end(self, request: Request) -> None:
        """The request runs no more; before it gives up its blocks."""
        lease = self._leases.pop(request, None)
        if lease is not None:
            self._forget(lease)

    def forget(self, request: Request) -> None:
        """A waiting request will not start."""
        if self.tier is not None:
            self.tier.forget(request)

    def reset(self) -> None:
        """Forget all that is cached. What runs goes on, and tells the cache nothing more."""
        self.cache.reset()
        if self.tier is not None:
            self.tier.reset()
        for lease in self._leases.values():
            lease.node = None
            self._forget(lease)

    def check(self, running: Iterable[Request]) -> None:
        """Raises KvasirError unless the requests hold the blocks that they made known."""
        self.cache.check()
        requests = set(running)
        if self._enabled and requests != self._leases.keys():
            raise KvasirError(f"{len(self._leases)} leases of {len(requests)} running requests")
        leases = self._leases.values()
        if +self._computing != Counter((x.rank, x.computing) for x in leases if x.computing):
            raise KvasirError("the blocks being computed are not those of the running requests")
        for request, lease in self._leases.items():
            node = lease.node
            while node is not None and node.is_live and node.parent is not None:
                held = request.table.at(node.depth - 1)
                pairs = zip(held, node.blocks, strict=True)
                if any(own not in (known, NO_BLOCK) for own, known in pairs):
                    raise KvasirError(f"request {request.id} holds {held}, not {node.blocks}")
                node = node.parent

    def _ahead(
        self, request: Request, chain: Chain, hit: Hit, n_tokens: int, n_spare: int
    ) -> Ahead | None:
        depth, n_full = hit.node.depth, n_tokens // self.cache.block_size
        if self.tier is None or depth >= n_full:
            return Ahead(depth)
        if not self.cache.fits(hit, request.n_known, n_spare):
            return Ahead(depth)
        return self.tier.find(request, chain, depth, n_full, was_preempted=request.epoch > 0)

    def _n_tokens(self, hit: Hit, depth: int | None = None) -> int:
        n_full = hit.node.depth if depth is None else depth
        return n_full * self.cache.block_size + hit.n_rows

    def _load(self, request: Request, found: Found) -> tuple[tuple[Transfer, ...], Node | None]:
        """What disk gave becomes known, as if it had been computed; the last node. What memory has
        of it already, past a gap in a windowed group, is shared and not loaded."""
        node = found.hit.node
        if self.tier is None or found.ahead is None:
            return (), node
        table = request.table
        own = {i: table.at(i) for i, _, _ in found.ahead.names}
        last = self.cache.extend(node, found.chain, table, found.ahead.depth, is_proven=True)
        loads = [
            Transfer(name, g, own[i][g])
            for i, g, name in found.ahead.names
            if table.at(i)[g] == own[i][g]
        ]
        self.tier.load(request, found.ahead, {load.name for load in loads})
        return tuple(loads), last

    def _chain(self, request: Request) -> Chain:
        root = chain_root(self._key_root, request.share.context)
        chain = request.share.chain = Chain(root, request.tokens, self.cache.block_size)
        return chain

    def _expect(self, lease: _Lease) -> None:
        """Others may wait for the next block, if it can be named."""
        if lease.computing:
            self._forget(lease)
        node = lease.node
        if node is not None and node.depth < lease.chain.n_full:
            lease.computing = lease.chain.keys(node.depth + 1)[node.depth]
            self._computing[lease.rank, lease.computing] += 1

    def _is_computed(self, rank: int, key: bytes) -> bool:
        return any((other, key) in self._computing for other in range(rank + 1))

    def _forget(self, lease: _Lease) -> None:
        if not lease.computing:
            return
        key = lease.rank, lease.computing
        self._computing[key] -= 1
        if not self._computing[key]:
            del self._computing[key]
        lease.computing = b""
