"""How late the event loop is: what every client waits for, whoever holds it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PERIOD = 0.1
"""Seconds: ten looks a second cost a thousandth of a core."""


async def measure_lag(observe: Callable[[float], None]) -> None:
    """Tells ``observe`` again and again how much later than asked a wake-up came, in seconds."""
    while True:
        due = time.monotonic() + PERIOD
        await asyncio.sleep(PERIOD)
        observe(max(0.0, time.monotonic() - due))
