"""Which engine ids a response had, and whose it was: so that clients can ask about it later."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from math import inf

import msgspec

from kvasir.serve.backpressure import Backpressure

MAX_RESPONSES = 4096


class Served(msgspec.Struct, frozen=True):
    """One response and the engine ids of its choices."""

    id: str
    """As the client sees it, such as chatcmpl-…"""
    first: int
    n_choices: int
    owner: bytes
    model: str
    """The root of what answered: ids are those of its engine."""
    compile_seconds: float = 0.0
    """That it waited until its grammar was judged, before the engine had it."""
    received: float = 0.0
    """When the server had it, on the monotonic clock of the timeline; 0 where nobody noted it."""
    waits_for_model: bool = False
    """Whether the engine was loaded or started for it, or while it waited."""
    ttft_by: float = inf
    """When its first token was due, as it asked."""
    has_masks: bool = False
    """Whether a grammar held its choices."""
    backpressure: Backpressure | None = None
    """Of who listened from the start."""

    @property
    def ids(self) -> range:
        return range(self.first, self.first + self.n_choices)


class ServedResponses:
    """The last ``limit`` responses. Engine ids only ever grow."""

    def __init__(self, limit: int = MAX_RESPONSES) -> None:
        self._limit = limit
        self._by_id: dict[str, Served] = {}
        self._order: deque[Served] = deque()

    def add(self, served: Served) -> None:
        self._by_id[served.id] = served
        self._order.append(served)
        if len(self._order) > self._limit:
            del self._by_id[self._order.popleft().id]

    def get(self, response_id: str, owner: bytes) -> Served | None:
        """None for a response that is unknown, forgotten or another's: nobody learns which."""
        served = self._by_id.get(response_id)
        return served if served is not None and served.owner == owner else None

    def find(self, response_id: str) -> Served | None:
        """Whoever's it is."""
        return self._by_id.get(response_id)

    def names(self, owner: bytes, model: str) -> ClientNames:
        """Who is who among the ids of the engine of ``model``, as far as ``owner`` may know."""
        return ClientNames([x for x in self._order if x.owner == owner and x.model == model])


class ClientNames:
    """Engine ids in the words of one client."""

    def __init__(self, served: list[Served]) -> None:
        self._served = served
        self._firsts = [item.first for item in served]

    def name(self, engine_id: int) -> str | None:
        """Response id, and "/choice" where it has several; None for what is another's."""
        at = bisect_right(self._firsts, engine_id) - 1
        if at < 0 or engine_id not in self._served[at].ids:
            return None
        served = self._served[at]
        return served.id if served.n_choices == 1 else f"{served.id}/{engine_id - served.first}"
