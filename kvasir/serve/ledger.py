"""What was asked of engines and is not answered, and what they told: it outlives each of them."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import repeat

from msgspec import structs

from kvasir.core.errors import KvasirError
from kvasir.core.messages import EngineStats, Ready, StepEvents, TokenEvent
from kvasir.grammar.thinking import limit_in
from kvasir.serve.engine_counts import EngineCounts
from kvasir.serve.link import Link
from kvasir.serve.messages import (
    CacheReset,
    Cancel,
    EndThinking,
    Fatal,
    Freeze,
    FromEngine,
    HoldingsAnswer,
    News,
    Release,
    ResetMediaCache,
    Submit,
    ToEngine,
)
from kvasir.serve.questions import Questions
from kvasir.serve.replay import Live, Replay
from kvasir.serve.slices import Slices, Work
from kvasir.serve.streams import EventStream, in_turns, n_reads
from kvasir.serve.suspects import PASSED_TOKENS, Suspects
from kvasir.serve.tokenlog import ReplayError
from kvasir.serve.totals import at_rest, total
from kvasir.timing.records import StepRecord
from kvasir.timing.timeline import Timeline

LOOK_SECONDS = 0.001
"""Between two looks whether a suspect has passed."""


class Ledger:
    """Lives in one event loop; not thread-safe."""

    def __init__(self, counts: EngineCounts, clock: Callable[[], float] = time.monotonic) -> None:
        self.live: dict[int, Live] = {}
        self.stats = EngineStats()
        """Counters are those of all engines so far."""
        self.timeline = Timeline(clock)
        """What engines have told: a copy of their own."""
        self.slices = Slices()
        self.n_told = 0
        """Events."""
        self._counts = counts
        self._link: Link | None = None
        self._before: EngineStats | None = None
        """What the engines before this one had counted."""
        self.questions = Questions(self._send)

    async def hear(self, link: Link) -> str | None:
        """Handle what an engine says until its connection ends; its own words for its end, if it
        had any. Raises FrameError."""
        said = None
        while (message := await link.read()) is not None:
            if isinstance(message, Fatal):
                said = message.message
            for _ in self._handle(message):
                await asyncio.sleep(0)
        return said

    def connect(self, link: Link) -> None:
        """From now on an engine listens at ``link``, and has been told nothing."""
        self.stats = at_rest(self.stats)
        self._before = self.stats if self.stats.n_received else None
        self._link = link
        for request_id in self.timeline.live - self.live.keys():
            self.timeline.finished(request_id, "cancelled")
        self.questions.ask_again()

    def disconnect(self) -> None:
        """The engine has ended."""
        self._link = None

    @property
    def is_connected(self) -> bool:
        """Whether an engine listens."""
        return self._link is not None

    async def resume(self, link: Link, info: Ready, suspects: Suspects) -> None:
        """Send what is live to another engine. What ran goes before what waits, and ``suspects``
        one at a time: the next when the one before has passed."""
        replay = Replay(self.live, info)
        if suspects.waiting:
            ran = [i for i, x in self.live.items() if x.log.emitted]
            await self._send_again(link, replay, set(ran).difference(suspects.waiting))
        for suspect in tuple(suspects.waiting):
            suspects.begin(suspect)
            await self._send_again(link, replay, (suspect,))
            while not self._has_passed(suspect):
                await asyncio.sleep(LOOK_SECONDS)
            suspects.passed()
        while todo := [i for i, x in self.live.items() if x.link is not link]:
            await self._send_again(link, replay, todo)

    @property
    def has_work(self) -> bool:
        """Whether the engine owes an answer."""
        link = self._link
        return link is not None and any(x.link is link for x in self.live.values())

    def cancel(self, stream: EventStream, ids: Sequence[int]) -> None:
        """End choices; ids that ended already are fine. Their events no longer arrive."""
        live = tuple(i for i in ids if i in stream.open)
        for i in live:
            stream.open.discard(i)
            self.live.pop(i, None)
        if live:
            self._send(Cancel(live))

    def end_thinking(self, ids: Iterable[int]) -> int:
        """How many of these choices run and may be told that their reasoning ends."""
        told = []
        for request_id in ids:
            live = self.live.get(request_id)
            if live is not None and limit_in(live.log.request.params.constraint) is not None:
                live.ends_thinking = True
                told.append(request_id)
        if told:
            self._send(EndThinking(tuple(told)))
        return len(told)

    def fail(self, stream: EventStream, error: KvasirError) -> None:
        self.cancel(stream, tuple(stream.open))
        stream.fail(error)

    def let_go(self, ids: Sequence[int]) -> None:
        """The blocks that ended requests hold are not wanted any more."""
        if ids:
            self._send(Release(tuple(ids)))

    def freeze(self, is_frozen: bool) -> None:
        self._send(Freeze(is_frozen))

    def forget_media(self) -> None:
        """What the engine keeps of images, before it is sent anything else."""
        self._send(ResetMediaCache())

    def end(self, error: KvasirError) -> None:
        """Nobody will answer any more."""
        self._link = None
        self.questions.end(error)

    def _send(self, message: ToEngine) -> None:
        """What there is nobody to hear need not be said."""
        if self._link is not None:
            self._link.send(message)

    async def _send_again(self, link: Link, replay: Replay, ids: Collection[int]) -> None:
        """What is live of ``ids``, the oldest first, as fast as it is read: choices with images are
        large."""
        left = deque(sorted(ids))

        def sending() -> Work[None]:
            while left and not link.is_full:
                live = self.live.get(left.popleft())
                if live is not None:
                    self._resend(link, replay, live)
                yield

        while left:
            await self.slices.run(sending())
            await link.drain()

    def _resend(self, link: Link, replay: Replay, live: Live) -> None:
        if live.ends_thinking:
            live.log.close_thinking(len(live.log.emitted))
        try:
            request = replay.request(live)
        except ReplayError as error:
            self.fail(live.stream, error)
            return
        self._counts.replays += live.link is not None
        live.link, live.n_before = link, len(live.log.emitted)
        link.send(Submit(request))

    def _has_passed(self, request_id: int) -> bool:
        live = self.live.get(request_id)
        return live is None or live.n_new >= PASSED_TOKENS

    def _handle(self, message: FromEngine) -> Work[None]:
        """Yields where others have a turn, and as often as readers of streams need one before the
        next frame."""
        if isinstance(message, StepEvents):
            stats, before = message.stats, self._before
            self.stats = stats if before is None else total(before, stats)
            self.n_told += len(message.events)
            for events in in_turns(message.events):
                left = [event for event in events if self._deliver(event)]
                yield from repeat(None, n_reads(left))
            return
        if isinstance(message, News):
            for item in message.items:
                if self._before is not None and isinstance(item, StepRecord):
                    item = structs.replace(item, step=self._before.step + item.step)
                self.timeline.add(item)
        elif isinstance(message, HoldingsAnswer):
            self.questions.answer_holdings(message)
        elif isinstance(message, CacheReset):
            self.questions.answer_reset(message)
        yield

    def _deliver(self, event: TokenEvent) -> bool:
        """Whether it waits for its reader."""
        live = self.live.get(event.id)
        if live is None:
            return False
        live.log.record(event)
        if not live.stream.push(event):
            self.cancel(live.stream, tuple(live.stream.open))
            live.stream.overflow()
        elif event.finish is not None:
            del self.live[event.id]
        return live.stream.has_news
