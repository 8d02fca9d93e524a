"""Beam search for a client: each token of all beams is one round trip to the engine."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator, Sequence
from math import inf

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.core.request import EngineRequest
from kvasir.serve.answer import Tally, Whole
from kvasir.serve.client import AsyncClient
from kvasir.serve.exchange import ClientGone
from kvasir.serve.generation import (
    GRACE_SECONDS,
    DeadlineExceeded,
    Listener,
    late,
    let_in,
    timed_out,
    watch,
)
from kvasir.serve.metrics import ModelMetrics
from kvasir.serve.numbered import Numbered
from kvasir.serve.resolved import Job
from kvasir.serve.slices import Work
from kvasir.serve.streams import EventStream
from kvasir.serve.wanted import Size, bytes_beside
from kvasir.text.beam import Beam, BeamSearchParams, Search
from kvasir.text.choice import failure_of
from kvasir.tokenizer.tokenizer import Tokenizer


class BeamJob(msgspec.Struct, frozen=True):
    """``job.params.n`` beams for each prompt."""

    job: Job
    client: AsyncClient
    tokenizer: Tokenizer
    metrics: ModelMetrics
    timeout: int | None
    """Seconds after the request's arrival that the answer may take."""

    def searches(self) -> list[Search]:
        """Raises RequestError (400)."""
        job, eos_ids = self.job, self.tokenizer.eos_ids
        found = []
        for prompt, resolved in zip(job.prompts, job.resolved, strict=True):
            params = BeamSearchParams(
                beam_width=job.params.n,
                max_tokens=resolved.max_tokens,
                ignore_eos=job.params.ignore_eos,
                length_penalty=job.length_penalty or 0.0,
                early_stopping=job.early_stopping,
            )
            params.check()
            rest = job.context, job.standing, job.media
            found.append(Search(prompt, params, eos_ids, *rest))
        return found


async def search_beams(beam_job: BeamJob, listener: Listener) -> tuple[list[Whole], Tally]:
    """The best beams of each prompt as its choices. Raises what the engine raises, ClientGone,
    RequestTimeout and DeadlineExceeded."""
    searches, driver = beam_job.searches(), _Driver(beam_job, listener)
    metrics, standing = beam_job.metrics, beam_job.job.standing
    started = time.perf_counter()
    driver.admit()
    try:
        await driver.run(searches)
    except ClientGone:
        metrics.cancelled()
        raise
    except KvasirError:
        metrics.choice_done("error", standing)
        raise
    beams = [beam for search in searches for beam in search.best()]
    metrics.request_done(time.perf_counter() - started, standing)
    for beam in beams:
        metrics.choice_done("stop" if beam.is_ended else "length", standing)
    wholes = await beam_job.client.slices.run(_wholes(beam_job, beams))
    tally = Tally(beam_job.job, listener.arrived)
    tally.n_output = sum(len(beam.tokens) for beam in beams)
    tally.n_cached = driver.n_cached
    return wholes, tally


class _Driver:
    """Advances all prompts together."""

    def __init__(self, beam_job: BeamJob, listener: Listener) -> None:
        self._job = beam_job
        self._client = beam_job.client
        self._listener = listener
        self._stream: EventStream | None = None
        """One for the whole search, so that a drain and a pause wait for it."""
        self._watch: asyncio.Task[None] | None = None
        self._held: Sequence[int] = ()
        self._asked: Sequence[int] = ()
        self.n_cached = 0
        """Prompt tokens that were not computed."""

    def admit(self) -> None:
        """Raises EngineDown, CapacityError."""
        job = self._job.job
        self._client.admit(self._size(len(job.prompts), job.params.n, job.n_prompt_tokens))

    async def run(self, searches: Sequence[Search]) -> None:
        """Raises RequestTimeout, DeadlineExceeded."""
        timeout, due = self._job.timeout, self._job.job.standing.answer_by + GRACE_SECONDS
        times_out = inf if timeout is None else self._listener.arrived + timeout
        end = min(due, times_out)
        try:
            async with asyncio.timeout(None if end == inf else end - time.monotonic()):
                while growing := [search for search in searches if search.is_open]:
                    await self._advance(growing)
        except TimeoutError:
            raise (timed_out(timeout) if end == times_out else late()) from None
        finally:
            self._leave()

    def _leave(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
        if self._stream is not None:
            self._client.release(self._stream)
        self._client.let_go([*self._held, *self._asked])

    async def _advance(self, searches: Sequence[Search]) -> None:
        n = sum(len(search.beams) for search in searches)
        n_tokens = sum(len(search.prompt) * len(search.beams) for search in searches)

        def requests(first: int) -> Iterator[EngineRequest]:
            self._asked, ids = range(first, first + n), itertools.count(first)
            return (x for search in searches for x in search.requests(ids))

        n_beams = 0 if self._stream else self._job.job.params.n - 1
        stream = await self._sent(requests, self._size(n, 1, n_tokens, n_beams))
        news = await self._collect(stream, n)
        self._client.let_go(self._held)
        self._held, self._asked = self._asked, ()
        await self._client.slices.run(self._grow(searches, [news[i] for i in self._held]))

    async def _sent(self, requests: Numbered, size: Size) -> EventStream:
        """Where their events come."""
        client, listener, stream = self._client, self._listener, self._stream
        if stream is not None:
            await client.go_on(stream, requests, size)
            return stream
        stream = self._stream = await let_in(client, client.open(requests, size), listener)
        self._watch = asyncio.create_task(watch(listener, client, stream))
        return stream

    def _grow(self, searches: Sequence[Search], news: Sequence[TokenEvent]) -> Work[None]:
        """``news`` in the order of the searches and of their beams."""
        first = 0
        for search in searches:
            own = news[first : first + len(search.beams)]
            first += len(own)
            if search.beams[0].parent < 0:
                self.n_cached += own[0].n_cached
            search.grow(own)
            yield

    def _size(self, n_requests: int, n: int, n_tokens: int, n_beams: int = 0) -> Size:
        job = self._job.job
        n_bytes = bytes_beside(job.media, "", ())
        return Size(n_requests, n, n_tokens, job.standing, n_bytes, n_beams)

    async def _collect(self, stream: EventStream, n: int) -> dict[int, TokenEvent]:
        news: dict[int, TokenEvent] = {}
        while len(news) < n:
            for event in await stream.read():
                if event.finish in ("error", "cancelled"):
                    raise self._failure(event)
                news[event.id] = event
        return news

    def _failure(self, event: TokenEvent) -> KvasirError:
        """The engine foresees no more than a token: what it foresees in the middle of a search has
        come true."""
        if self._held and event.error_code == "deadline_unreachable":
            return DeadlineExceeded(
                "the time that the request allows is over: allow more, or ask for less"
            )
        return failure_of(event)


def _wholes(beam_job: BeamJob, beams: Sequence[Beam]) -> Work[list[Whole]]:
    wholes = []
    for beam in beams:
        wholes.append(_whole(beam_job, beam))
        yield
    return wholes


def _whole(beam_job: BeamJob, beam: Beam) -> Whole:
    """The token that ended it is no part of the text."""
    tokens = beam.tokens[:-1] if beam.is_ended else beam.tokens
    text = beam_job.tokenizer.decode(
        tokens, skip_special=beam_job.job.params.skip_special_tokens, continues=True
    )
    finish = "stop" if beam.is_ended else "length"
    return Whole([text], list(beam.tokens), finish=finish)
