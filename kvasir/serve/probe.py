"""Whether an idle engine answers: it is asked for one token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from math import inf

from kvasir.core.errors import KvasirError
from kvasir.core.params import TokenParams
from kvasir.serve.client import AsyncClient

KEPT_SECONDS = 5.0
"""What was found holds so long: asking more often costs nothing."""
TOKEN = TokenParams(seed=0, max_tokens=1, temperature=0.0)


class Prober:
    """Lives in one event loop. Who asks while a probe runs gets what it finds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._found: float | None = None
        self._at = -inf
        self._task: asyncio.Task[None] | None = None

    async def seconds(self, client: AsyncClient, patience: float) -> float | None:
        """Until the token came; None when it did not in ``patience`` seconds."""
        if self._clock() - self._at > KEPT_SECONDS:
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._probe(client, patience))
            await asyncio.shield(self._task)
        return self._found

    async def _probe(self, client: AsyncClient, patience: float) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(patience):
                client.n_probes += 1
                stream = await client.submit((((0,), TOKEN),))
                try:
                    await stream.read()
                finally:
                    client.release(stream)
            self._found = self._clock() - began
        except (TimeoutError, KvasirError):
            self._found = None
        self._at = self._clock()
