"""One resolved request: computed, and worded by its dialect. Needs no HTTP: whoever asks gets the
answer whole or as batches of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Protocol

import msgspec

from kvasir.serve.answer import Grammar, Tally, Whole, best_of
from kvasir.serve.beams import BeamJob, search_beams
from kvasir.serve.continued import ContinuedGeneration, RunLog
from kvasir.serve.generation import Generation, Listener
from kvasir.serve.pace import paced
from kvasir.serve.parts import Parts, flat
from kvasir.serve.resolved import Resolved
from kvasir.serve.service import Model
from kvasir.serve.slices import Value, Work, at_once
from kvasir.text.choice import Delta
from kvasir.text.reads import ReadsVector, ReadsVectors
from kvasir.tokenizer.tokenizer import Tokenizer

OPENING_EVENTS = 64
"""Of those before the first token, sent at a time: about half a millisecond."""

Batch = list[Parts]
"""Events that come together; none when nothing came for a while."""


class Outlet(Protocol):
    """Where events go without waiting."""

    def takes_events(self) -> bool:
        """Whether it does now."""
        ...

    def tell(self, data: bytes) -> None: ...


class AnswerRun(msgspec.Struct, frozen=True):
    """Asked once, either for ``whole`` or for ``batches``. Both raise ClientGone, EngineDown,
    CapacityError, ChoiceFailed and RequestTimeout."""

    resolved: Resolved
    grammar: Grammar
    model: Model
    tokenizer: Tokenizer
    listener: Listener
    timeout: int | None = None
    """Seconds after the arrival that the answer may take."""
    submitted: Callable[[int], None] = lambda first: None
    """Told the engine's id of choice 0 once there is one; those of the others follow."""
    log: RunLog | None = None
    """Of an answer that is kept: what it holds is told first and not computed. Beams have none."""

    async def whole(self) -> Parts:
        job = self.resolved.job
        if job.length_penalty is None:
            wholes, tally = await self._gathered()
        else:
            wholes, tally = await search_beams(self._beams(), self.listener)
        if job.pooling is not None:
            await self._finish(wholes)
        chosen = best_of(wholes, job)
        return await self.model.client.slices.run(self.grammar.whole(chosen, tally))

    async def batches(self, outlet: Outlet | None = None) -> AsyncGenerator[Batch, None]:
        """The events of a stream, in their order, whatever their batches; without those that
        ``outlet`` took as they came, while all before them had been asked for."""
        grammar = self.grammar
        async with self._generation() as generation:
            tally = self._tally(generation)
            is_open = False
            interval, news = self.resolved.stream_interval, generation.deltas()
            async for deltas in news if interval == 1 else paced(news, interval):
                if not is_open:
                    is_open = True
                    for some in _some(grammar.opening(tally)):
                        yield some
                    if outlet is not None and interval == 1 and not grammar.has_logprobs:
                        tell = partial(_tell, outlet.tell, grammar, tally)
                        generation.tell(tell, outlet.takes_events)
                if len(deltas) == 1 and not grammar.has_logprobs:
                    tally.add(deltas[0])
                    if events := grammar.events(deltas[0], tally):
                        yield events
                    continue
                events = await self._do(_events(grammar, tally, deltas))
                if events or not deltas:
                    yield events
            yield list(grammar.ending(tally))

    async def _gathered(self) -> tuple[list[Whole], Tally]:
        wholes = [Whole(index=i) for i in range(self.resolved.job.n_choices)]
        async with self._generation() as generation:
            tally = self._tally(generation)
            async for deltas in generation.deltas():
                await self._do(_gather(self.grammar, tally, wholes, deltas))
        return wholes, tally

    async def _finish(self, wholes: Sequence[Whole]) -> None:
        """From the vectors that the engine gives to logits, or to the vectors that are told."""
        text, head = await self.model.text, self.resolved.job.head
        info = self.model.client.info
        if head:
            found = await asyncio.to_thread(lambda: text.heads.named(head))
            await self.model.client.slices.run(_judged(wholes, found))
        elif info is not None and info.vectors.n_dense:
            await asyncio.to_thread(lambda: text.heads.dense)
            await self.model.client.slices.run(_led(wholes, text.heads))

    def _tally(self, generation: Generation) -> Tally:
        return Tally(self.resolved.job, self.listener.arrived, report=generation.report)

    def _generation(self) -> Generation:
        model = self.model
        asked = (
            self.resolved.job,
            model.client,
            self.tokenizer,
            self.listener,
            model.metrics,
            self.timeout,
            self.submitted,
        )
        if self.log is None:
            found = Generation(*asked)
        else:
            found = ContinuedGeneration(*asked, log=self.log)
        found.silence = self.resolved.silence
        return found

    def _beams(self) -> BeamJob:
        model, job = self.model, self.resolved.job
        return BeamJob(job, model.client, self.tokenizer, model.metrics, self.timeout)

    async def _do(self, work: Work[Value]) -> Value:
        """In slices where it may be long."""
        if self.grammar.has_logprobs:
            return await self.model.client.slices.run(work)
        return at_once(work)


async def after(batches: AsyncGenerator[Batch, None], number: int) -> AsyncGenerator[Batch, None]:
    """``batches`` without the events up to ``number``, the first being number 0."""
    left = number + 1
    async with aclosing(batches):
        async for batch in batches:
            rest = batch[left:] if left > 0 else batch
            left -= len(batch)
            if rest or not batch:
                yield rest


def _tell(tell: Callable[[bytes], None], grammar: Grammar, tally: Tally, delta: Delta) -> None:
    tally.add(delta)
    if events := grammar.events(delta, tally):
        tell(b"".join(flat(events)))


def _some(events: Iterator[Parts]) -> Iterator[Batch]:
    while some := [event for _, event in zip(range(OPENING_EVENTS), events, strict=False)]:
        yield some


def _events(grammar: Grammar, tally: Tally, deltas: Sequence[Delta]) -> Work[Batch]:
    found: Batch = []
    for delta in deltas:
        yield from grammar.read(delta)
        tally.add(delta)
        found += grammar.events(delta, tally)
    return found


def _judged(wholes: Sequence[Whole], head: ReadsVector) -> Work[None]:
    for whole in wholes:
        whole.logits = head.logits(whole.vector)
        yield


def _led(wholes: Sequence[Whole], heads: ReadsVectors) -> Work[None]:
    for whole in wholes:
        whole.vector = yield from heads.told(whole.vector)


def _gather(
    grammar: Grammar, tally: Tally, wholes: Sequence[Whole], deltas: Sequence[Delta]
) -> Work[None]:
    for delta in deltas:
        yield from grammar.read(delta)
        tally.add(delta)
        wholes[delta.index].add(delta)
