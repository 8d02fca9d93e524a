"""What is told of a scheduler after each step, beside what it counts."""

from __future__ import annotations

from msgspec import structs

from kvasir.core.messages import EngineStats
from kvasir.kv.manager import KVCacheManager
from kvasir.timing.timekeeper import Timekeeper


def told(counted: EngineStats, kv: KVCacheManager, times: Timekeeper) -> EngineStats:
    """A copy of ``counted`` with what the others know."""
    wait, pools = times.wait(), kv.cache.pools
    return structs.replace(
        counted,
        blocks_total=sum(pool.n_blocks for pool in pools),
        blocks_free=sum(pool.n_free for pool in pools),
        blocks_cached=sum(pool.n_cached for pool in pools),
        prefix_queries=kv.n_queried,
        prefix_hits=kv.n_hit,
        disk=None if kv.tier is None else kv.tier.stats(),
        first_wait=wait.first,
        last_wait=wait.last,
        n_unreachable=times.n_unreachable,
        n_expired=times.n_expired,
    )
