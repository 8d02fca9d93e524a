"""Beam search over an engine of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.engine.engine import Engine
from kvasir.text.beam import Search


class BeamSearch:
    """Advances all prompts together on an engine of this process. For one use."""

    def __init__(
        self, engine: Engine, ids: Iterator[int], check: Callable[[], None] = lambda: None
    ) -> None:
        """``ids``: where the engine's ids of the requests come from. ``check`` is called before
        each step."""
        self._engine = engine
        self._check = check
        self._ids = ids
        self._held: list[int] = []
        """Requests of the newest step, and of the one before until all of them have ended."""

    def run(self, searches: Sequence[Search]) -> None:
        """Raises RequestError when a prompt can never run, KvasirError when a beam fails, and what
        ``check`` raises."""
        try:
            while growing := [search for search in searches if search.is_open]:
                self._advance(growing)
        except BaseException:
            if self._engine.is_sound:
                self._abandon()
            raise
        self._release(self._held)

    def _advance(self, searches: Sequence[Search]) -> None:
        """One token for every beam."""
        asked = [search.requests(self._ids) for search in searches]
        ids = [request.id for requests in asked for request in requests]
        parents, self._held = self._held, [*self._held, *ids]
        for requests in asked:
            for request in requests:
                self._engine.add(request)
        news = self._collect(set(ids))
        self._release(parents)
        self._held = ids
        for search, requests in zip(searches, asked, strict=True):
            search.grow([news[request.id] for request in requests])

    def _collect(self, waiting: set[int]) -> dict[int, TokenEvent]:
        news: dict[int, TokenEvent] = {}
        while len(news) < len(waiting):
            self._check()
            if not self._engine.has_work:
                raise KvasirError(f"the engine forgot {len(waiting) - len(news)} beams")
            for event in self._engine.step().events:
                if event.id not in waiting:
                    continue
                if event.finish in ("error", "cancelled"):
                    raise KvasirError(event.error or "a beam was cancelled", code=event.error_code)
                news[event.id] = event
        return news

    def _abandon(self) -> None:
        """Ends what is open, lets the engine come to rest and gives all blocks back."""
        for request_id in self._held:
            self._engine.cancel(request_id)
        while self._engine.has_work:
            self._engine.step()
        self._release(self._held)

    def _release(self, ids: Sequence[int]) -> None:
        for request_id in ids:
            self._engine.release(request_id)
