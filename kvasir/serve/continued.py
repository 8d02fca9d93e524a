"""A generation that can be continued, by another process as well: what the engine said is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec
from msgspec import structs

from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.core.request import EngineRequest
from kvasir.serve.choices import choices
from kvasir.serve.generation import Generation, let_in
from kvasir.serve.resolved import Ids
from kvasir.serve.slices import Work
from kvasir.serve.streams import READ_EVENTS, EventStream
from kvasir.serve.token_turns import TokenTurns
from kvasir.serve.tokenlog import closed
from kvasir.serve.wanted import Size
from kvasir.text.choice import Delta

FAILED = ("error", "cancelled")
"""Ends that are no news of an answer: who continues it tries again."""

LOG_BYTES = 2**17
"""Of events that are looked through at a time, about: a fraction of a millisecond."""
EVENT_BYTES, TOP_BYTES = 32, 16
"""Of an event, and of a log probability in it, about."""

_events = msgspec.msgpack.Decoder(list[msgspec.Raw])
_event = msgspec.msgpack.Decoder(TokenEvent)


@dataclass(slots=True)
class RunLog:
    """What the engine said of one answer: events of one token each, whatever its steps gave, so
    that the events of a stream are the same however often it is computed. Their ids are those of
    the choices, from 0."""

    events: list[TokenEvent] = field(default_factory=list)
    n_kept: int = 0
    """Of ``events``, those that are on disk."""
    keep: Callable[[], Awaitable[None]] | None = field(default=None, compare=False)
    """Has all of them on disk, where that is wanted."""
    ends: frozenset[int] = frozenset()
    """Choices whose reasoning is to end, and of which ``events`` do not say where: until they do,
    nothing is told that is not on disk, or who goes on would end it before what was told."""

    def add(self, event: TokenEvent) -> None:
        self.events.append(event)

    def ask_end(self, choices: Iterable[int]) -> bool:
        """Whether the reasoning of any of them is to end now."""
        over = {event.id for event in self.events if _is_over(event)}
        self.ends = self.ends.union(choices) - over
        return bool(self.ends)

    def fresh(self) -> list[TokenEvent]:
        """Those that are not on disk yet."""
        return self.events[self.n_kept :]


def log_pieces(events: Iterable[TokenEvent]) -> Iterator[bytes]:
    """MessagePack of some of ``events`` each, for ``read_log``."""
    some: list[TokenEvent] = []
    n_bytes = 0
    for event in events:
        some.append(event)
        n_bytes += EVENT_BYTES + len(event.scores) + sum(map(_size, event.logprobs))
        if n_bytes >= LOG_BYTES:
            yield msgspec.msgpack.encode(some)
            some, n_bytes = [], 0
    if some:
        yield msgspec.msgpack.encode(some)


def _size(one: TokenLogprob) -> int:
    return TOP_BYTES * (1 + len(one.top))


def read_log(pieces: Iterable[bytes | bytearray]) -> Work[RunLog]:
    """What ``pieces`` say, which are those of all events of an answer."""
    log = RunLog()
    for piece in pieces:
        for event in _events.decode(piece):
            log.add(_event.decode(event))
            yield
    return log


@dataclass(slots=True)
class _SoFar:
    """Of one choice."""

    n_scored: int
    tokens: list[int] = field(default_factory=list)
    closes_at: int | None = None


class ContinuedGeneration(Generation):
    """Tells what ``log`` holds, then what follows, which it adds to ``log``."""

    def __init__(self, *args: object, log: RunLog) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._log = log
        self._told: list[Delta] = []
        self._places: Sequence[int] = ()
        """Of the choices that the engine goes on with."""
        self._is_past = False

    async def _entered(self) -> EventStream:
        if not self._log.events:
            return await super()._entered()
        return await let_in(self._client, self._open(), self._listener)  # it had begun in time

    @property
    def _due(self) -> float:
        return inf if self._log.events else super()._due

    async def _open(self) -> EventStream:
        stream = await self._opened()
        first, ends = stream.first_id, self._log.ends
        if ends:
            self._client.end_thinking(first + at for at, x in enumerate(self._places) if x in ends)
        return stream

    async def _opened(self) -> EventStream:
        self._stream = EventStream(0, 0, 1)  # nobody is asked for what is known
        if not self._log.events:
            self._places = range(self.job.n_choices)
            return await super()._open()
        self._places, self._is_past = range(self.job.n_choices), True
        for first in range(0, len(self._log.events), READ_EVENTS):
            some = self._log.events[first : first + READ_EVENTS]
            self._told += [x for event in some if (x := self._apply(event)) is not None]
            await asyncio.sleep(0)  # others have a turn
        self._is_past = False
        self._places = [i for i in range(self.job.n_choices) if i not in self._ended]
        return await self._continued() if self._places else self._stream

    async def _continued(self) -> EventStream:
        job, client = self.job, self._client
        n_tokens = sum(len(job.prompts[i // job.params.n]) for i in self._places)
        size = Size(len(self._places), 1, n_tokens, job.standing, job.n_bytes)
        client.admit(size)
        return await client.open(lambda first: list(self._requests(first)), size)

    def _requests(self, first: int) -> Iterator[EngineRequest]:
        """Of the choices that have not ended; the first of a prompt is the parent of the others."""
        said = self._said()
        parents: dict[int, int] = {}
        for at, place in enumerate(self._places):
            prompt, choice = divmod(place, self.job.params.n)
            parent = parents.setdefault(prompt, first + at)
            whole = EngineRequest(
                first + at,
                self.job.prompts[prompt],
                self.job.resolved[prompt],
                self.job.context,
                self.job.standing,
                hold_seconds=float(self.job.params.cache_ttl or 0),
                pooling=self.job.pooling,
                second=self.job.seconds[prompt] if self.job.seconds else 0,
                media=self.job.media,
                prediction=self.job.prediction,
            )
            one = list(choices(whole, choice + 1))[choice]
            if (closes_at := said[place].closes_at) is not None:
                one = structs.replace(one, params=closed(one.params, closes_at))
            yield structs.replace(
                one,
                id=first + at,
                emitted=tuple(said[place].tokens),
                n_scored=said[place].n_scored,
                parent=-1 if parent == first + at else parent,
            )

    def _said(self) -> list[_SoFar]:
        found = [_SoFar(self.job.n_scored) for _ in range(self.job.n_choices)]
        for event in self._log.events:
            found[event.id].tokens += event.tokens
            found[event.id].n_scored += len(event.prompt_logprobs) + event.n_scores
            if event.closes_at is not None:
                found[event.id].closes_at = event.closes_at
        return found

    async def deltas(self) -> AsyncIterator[Sequence[Delta]]:
        told, self._told = self._told, []
        for first in range(0, len(told), READ_EVENTS):
            yield told[first : first + READ_EVENTS]
            await asyncio.sleep(0)  # others have a turn
        async for news in super().deltas():
            yield news

    def _reader(self) -> Callable[[], Awaitable[list[TokenEvent]]]:
        read = super()._reader()
        turns = TokenTurns(self.job.n_choices, self.job.n_told_at_once, self._log.events)

        async def logged() -> list[TokenEvent]:
            while not (due := turns.due(self._ended)):
                events = await read()
                if not events:
                    return events
                for one in (one for event in events for one in singles(event)):
                    turns.add(self._index(one), one)
            for index, event in due:
                if event.finish not in FAILED:
                    self._log.add(structs.replace(event, id=index))
            over = {index for index, event in due if _is_over(event)}
            if self._log.keep and (self._log.ends or any(x.closes_at is not None for _, x in due)):
                await self._log.keep()  # nothing that follows would be computed again
            self._log.ends -= over
            return [event for _, event in due]

        return logged

    def _index(self, event: TokenEvent) -> int:
        return event.id if self._is_past else self._places[event.id - self._stream.first_id]

    def _engine_ids(self) -> Ids:
        """-1 of choices that have ended."""
        found = {place: self._stream.first_id + at for at, place in enumerate(self._places)}
        return tuple(found.get(i, -1) for i in range(self.job.n_choices))

    def _measure(self, index: int, delta: Delta) -> None:
        if not self._is_past:
            super()._measure(index, delta)


def _is_over(event: TokenEvent) -> bool:
    """Whether it is known where the reasoning of its choice ends."""
    return event.closes_at is not None or event.finish is not None


def singles(event: TokenEvent) -> Iterator[TokenEvent]:
    """``event`` as events of at most one token."""
    n = len(event.tokens)
    if n <= 1:
        yield event
        return
    for i, token in enumerate(event.tokens):
        one = structs.replace(
            event,
            tokens=(token,),
            logprobs=event.logprobs[i : i + 1],
            logits_hashes=event.logits_hashes[i : i + 1],
            prediction_hits=int(i < event.prediction_hits),
        )
        if i > 0:
            one = structs.replace(one, prompt_logprobs=(), scores=b"", n_scores=0, n_cached=0)
            one = structs.replace(one, prediction_misses=0)
        if i < n - 1:
            one = structs.replace(one, finish=None, stop_id=None)
        yield one
