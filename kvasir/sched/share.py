"""What a request shares with others: by the prefix cache, by forks and by holds."""

from __future__ import annotations

from dataclasses import dataclass

from kvasir.core.request import Context
from kvasir.kv.keys import Chain


@dataclass(slots=True, eq=False)
class Share:
    context: Context
    parent: int
    """Id of the request that it forks from; -1: none."""
    hold_seconds: float
    chain: Chain | None = None
    """Keys of its full blocks, once the prefix cache was asked."""
    n_waits: int = 0
    """Plans that it waited for a block that another computes."""
    n_cached: int = 0
    """Prompt tokens that the cache gave when it first ran."""
