"""What messages ask of an engine between two of its steps: a little at a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from weakref import WeakValueDictionary

from msgspec import structs

from kvasir.core.messages import StepEvents
from kvasir.core.tiles import Media
from kvasir.engine.engine import Engine
from kvasir.serve.choices import choices
from kvasir.serve.messages import (
    AskHoldings,
    CacheReset,
    Cancel,
    EndThinking,
    HoldingsAnswer,
    KeepText,
    Release,
    ResetMediaCache,
    ResetPrefixCache,
    Submit,
    ToEngine,
)
from kvasir.serve.outbox import Outbox
from kvasir.serve.pixels import PixelsHeard
from kvasir.serve.texts import TextsHeard

SHARE = 0.1
"""Of a step's time that may go to messages before the next."""
MIN_SECONDS = 0.0002
"""The same where steps are short: about ten choices, so that thousands arrive within a second."""
LOOK_SECONDS = 0.0005
"""Between two looks whether the disk has forgotten."""
IDLE_SECONDS = 0.005
"""The same while nothing runs: the choices of most requests begin together."""


class Errands:
    """Messages in the order of their arrival, each in pieces of tens of microseconds."""

    def __init__(
        self, engine: Engine, outbox: Outbox, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._engine = engine
        self._outbox = outbox
        self._clock = clock
        self._waiting: deque[Iterator[None]] = deque()
        self._tiles: WeakValueDictionary[tuple[int, bytes], Media] = WeakValueDictionary()
        """Of live requests: choices that another engine had begun come one by one, each with the
        pixels of their prompt, which are kept once."""
        self._texts = TextsHeard()
        self._pixels = PixelsHeard()

    def take(self, message: ToEngine) -> None:
        """To be done after those before it."""
        if isinstance(message, KeepText):
            self._texts.keep(message)
            return
        if isinstance(message, Submit):
            message = self._pixels.whole(self._texts.whole(message))
        if isinstance(message, Submit) and message.request.media:
            tiles = [self._tiles.setdefault((x.start, x.digest), x) for x in message.request.media]
            request = structs.replace(message.request, media=tuple(tiles))
            message = structs.replace(message, request=request)
        self._waiting.append(self._pieces(message))

    def run(self, step_seconds: float, *, is_idle: bool) -> None:
        """Do what the time before the next step allows after one of ``step_seconds``, one piece at
        least; the rest waits for the next gap."""
        seconds = IDLE_SECONDS if is_idle else max(MIN_SECONDS, SHARE * step_seconds)
        end = self._clock() + seconds
        while self._waiting:
            for _ in self._waiting[0]:
                if self._clock() >= end:
                    return
            self._waiting.popleft()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def _pieces(self, message: ToEngine) -> Iterator[None]:
        if isinstance(message, Submit):
            for request in choices(message.request, message.n):
                self._engine.submit((request,))
                yield
        elif isinstance(message, Cancel):
            for request_id in message.ids:
                self._engine.cancel(request_id)
                yield
        elif isinstance(message, EndThinking):
            for request_id in message.ids:
                self._engine.end_thinking(request_id)
                yield
        elif isinstance(message, Release):
            for request_id in message.ids:
                self._engine.release(request_id)
                yield
            if not self._engine.has_work:
                self._outbox.send(StepEvents((), self._engine.stats()))
        elif isinstance(message, AskHoldings):
            self._outbox.send(HoldingsAnswer(self._engine.holdings()))
            yield
        elif isinstance(message, ResetPrefixCache | ResetMediaCache):
            yield from self._reset(message)

    def _reset(self, message: ResetPrefixCache | ResetMediaCache) -> Iterator[None]:
        if isinstance(message, ResetMediaCache):
            self._engine.reset_mm_cache()
            yield
            return
        self._engine.reset_prefix_cache()
        yield
        while self._engine.is_forgetting:
            time.sleep(LOOK_SECONDS)
            yield
        self._outbox.send(CacheReset())
