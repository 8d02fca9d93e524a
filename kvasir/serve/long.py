"""Work whose size is known before: on the event loop where it is short, else in the thread for what
is long, where such works take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

LONG_BYTES = 2**16
"""Read or written in a fraction of a millisecond."""

Value = TypeVar("Value")


async def beside(n_bytes: int, work: Callable[[], Value]) -> Value:
    """What ``work`` returns, which reads or writes ``n_bytes``."""
    return work() if n_bytes <= LONG_BYTES else await asyncio.to_thread(work)
