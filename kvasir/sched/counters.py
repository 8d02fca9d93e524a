"""What the scheduler counts, and what is told of it after each step."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.core.messages import EngineStats
from kvasir.kv.manager import KVCacheManager
from kvasir.sched.queues import Queues
from kvasir.timing.timekeeper import Timekeeper


@dataclass(slots=True)
class Counters:
    step: int = 0
    n_cancelled: int = 0
    n_failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    step_seconds: float = 0.0
    n_received: int = 0
    tokens_received: int = 0
    tokens_waiting: int = 0

    def stats(self, queues: Queues, kv: KVCacheManager, times: Timekeeper) -> EngineStats:
        wait, pools = times.wait(), kv.cache.pools
        return EngineStats(
            step=self.step,
            n_running=len(queues.running),
            n_waiting=len(queues.waiting),
            blocks_total=sum(pool.n_blocks for pool in pools),
            blocks_free=sum(pool.n_free for pool in pools),
            blocks_cached=sum(pool.n_cached for pool in pools),
            n_preemptions=queues.n_preemptions,
            n_cancelled=self.n_cancelled,
            n_failed=self.n_failed,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            step_seconds=self.step_seconds,
            prefix_queries=kv.n_queried,
            prefix_hits=kv.n_hit,
            disk=None if kv.tier is None else kv.tier.stats(),
            n_received=self.n_received,
            tokens_received=self.tokens_received,
            tokens_waiting=self.tokens_waiting,
            first_wait=wait.first,
            last_wait=wait.last,
            n_unreachable=times.n_unreachable,
            n_expired=times.n_expired,
        )
