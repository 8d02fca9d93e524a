"""A line of the log for requests whose first token came later than it should have."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

from kvasir.core.errors import KvasirError
from kvasir.serve.answers.page import WhyChoice
from kvasir.serve.exchange import Exchange
from kvasir.serve.logs import FIELDS
from kvasir.serve.served import Served

logger = logging.getLogger("kvasir.requests")

LINE_SECONDS = 1.0
"""Between two lines: of an overload every request may be late, and each line is a calculation."""
Explain = Callable[[float], Coroutine[Any, Any, WhyChoice]]
"""What a choice waited for until a time."""


class LateLog:
    """Lives in one event loop."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = -inf
        self._n_more = 0
        """That are told by their number alone."""
        self._telling: asyncio.Task[None] | None = None

    def check(
        self, exchange: Exchange, served: Served, target_ms: int | None, explain: Explain
    ) -> None:
        """``exchange`` has ended. Its first token was due after ``target_ms``, or when it asked for
        it itself."""
        due = served.ttft_by
        if target_ms is not None:
            due = min(due, served.received + target_ms / 1000)
        came = first_token_at(exchange)
        if came <= due or came == inf:
            return
        now = self._clock()
        if now < self._next or (self._telling is not None and not self._telling.done()):
            self._n_more += 1
            return
        self._next = now + LINE_SECONDS
        n_more, self._n_more = self._n_more, 0
        self._telling = asyncio.create_task(self._tell(served, came, due, n_more, explain))

    async def _tell(
        self, served: Served, came: float, due: float, n_more: int, explain: Explain
    ) -> None:
        fields: dict[str, object] = {
            "response": served.id,
            "first_token_ms": round((came - served.received) * 1000),
            "target_ms": round((due - served.received) * 1000),
        }
        try:
            why = await explain(came)
        except KvasirError:  # the engine is gone, which the log says anyway
            why = {"index": 0, "state": "forgotten"}
        if "seconds" in why:
            fields |= {"cause": why["cause"] or "prompt", "why": why["sentence"]}
        if n_more:
            fields["more_were_late"] = n_more
        logger.warning("first token late", extra={FIELDS: fields})


def first_token_at(exchange: Exchange) -> float:
    """When it came, or the request ended without one because its time was over; else infinity."""
    notes = exchange.notes
    if notes.get("error") == "deadline_exceeded" and not notes.get("output_tokens"):
        return time.monotonic()
    times = (notes.get("queue_time_ms"), notes.get("prefill_time_ms"))
    if not notes.get("output_tokens"):
        return inf
    return exchange.arrived + sum(x for x in times if isinstance(x, float)) / 1000
