"""What the scheduler counts, and what is told of it after each step."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.core.messages import DrafterStats, EngineStats
from kvasir.kv.manager import KVCacheManager
from kvasir.timing.timekeeper import Timekeeper


@dataclass
class Counters:
    """Fields of ``EngineStats``."""

    step: int = 0
    n_preemptions: int = 0
    n_cancelled: int = 0
    n_failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    step_seconds: float = 0.0
    n_received: int = 0
    tokens_received: int = 0
    tokens_waiting: int = 0
    n_forced: int = 0
    n_drafts: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    draft_seconds: float = 0.0
    seconds_won: float = 0.0
    drafters: tuple[DrafterStats, ...] = ()

    def ran(self, seconds: float, n_forced: int) -> None:
        """A step, in which so many tokens were forced."""
        self.step += 1
        self.step_seconds += seconds
        self.n_forced += n_forced

    def verified(self, drafter: int, n_drafted: int, n_accepted: int) -> None:
        """A draft, of one of several drafters."""
        self.n_drafts += 1
        self.n_drafted += n_drafted
        self.n_accepted += n_accepted
        counts = 1, n_drafted, n_accepted
        self.drafters = tuple(
            [x.plus(*counts) if i == drafter else x for i, x in enumerate(self.drafters)]
        )

    def stats(
        self, n_running: int, n_waiting: int, kv: KVCacheManager, times: Timekeeper
    ) -> EngineStats:
        wait, pools = times.wait(), kv.cache.pools
        return EngineStats(
            **vars(self),
            n_running=n_running,
            n_waiting=n_waiting,
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
