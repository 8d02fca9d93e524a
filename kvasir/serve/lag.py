"""How late the event loop is: what every client waits for, whoever holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PERIOD = 0.1
"""Seconds: ten looks a second, callbacks without a task, cost less than a thousandth of a core."""


async def measure_lag(observe: Callable[[float], None]) -> None:
    """Tells ``observe`` again and again how much later than asked a wake-up came, in seconds."""
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def look_later() -> None:
        timers[:] = [loop.call_later(PERIOD, look, time.monotonic() + PERIOD)]

    def look(due: float) -> None:
        observe(max(0.0, time.monotonic() - due))
        look_later()

    look_later()
    try:
        await loop.create_future()
    finally:
        timers[0].cancel()
