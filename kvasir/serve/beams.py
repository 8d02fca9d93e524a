"""Beam search for a client: each token of all beams is one round trip to the engine."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.messages import TokenEvent
from kvasir.serve.answer import Tally, Whole
from kvasir.serve.client import AsyncClient
from kvasir.serve.exchange import ClientGone
from kvasir.serve.generation import Listener, RequestTimeout, let_in
from kvasir.serve.metrics import ModelMetrics
from kvasir.serve.resolved import Job
from kvasir.serve.slices import Work
from kvasir.serve.streams import EventStream
from kvasir.serve.wanted import Size
from kvasir.text.beam import Beam, BeamSearchParams, Search
from kvasir.text.choice import failure_of
from kvasir.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class BeamJob:
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
            found.append(Search(prompt, params, eos_ids, job.context, job.standing))
        return found


async def search_beams(beam_job: BeamJob, listener: Listener) -> tuple[list[Whole], Tally]:
    """The best beams of each prompt as its choices. Raises what the engine raises, ClientGone and
    RequestTimeout."""
    searches, driver = beam_job.searches(), _Driver(beam_job, listener)
    started = time.perf_counter()
    await driver.run(searches)
    beams = [beam for search in searches for beam in search.best()]
    beam_job.metrics.request_done(time.perf_counter() - started)
    for beam in beams:
        beam_job.metrics.choice_done("stop" if beam.is_ended else "length")
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
        self._held: list[int] = []
        self._asked: list[int] = []
        self._is_left = False
        self.n_cached = 0
        """Prompt tokens that were not computed."""

    async def run(self, searches: Sequence[Search]) -> None:
        job = self._job.job
        self._client.admit(self._size(len(job.prompts), job.params.n, job.n_prompt_tokens))
        watch = asyncio.create_task(self._watch())
        timeout = self._job.timeout
        left = None if timeout is None else self._listener.arrived + timeout - time.monotonic()
        try:
            async with asyncio.timeout(left):
                while growing := [search for search in searches if search.is_open]:
                    await self._advance(growing)
        except TimeoutError:
            raise RequestTimeout(
                f"the answer took more than {timeout} s: ask for less or raise --request-timeout"
            ) from None
        finally:
            watch.cancel()
            if self._stream is not None:
                self._client.release(self._stream)
            self._client.let_go([*self._held, *self._asked])

    async def _advance(self, searches: Sequence[Search]) -> None:
        if self._is_left:
            raise ClientGone
        n = sum(len(search.beams) for search in searches)
        n_tokens = sum(len(search.prompt) * len(search.beams) for search in searches)
        ids = itertools.count(self._client.next_id)
        self._asked = list(range(self._client.next_id, self._client.next_id + n))
        requests = (x for search in searches for x in search.requests(ids))
        size = self._size(n, 1, n_tokens)
        opening = self._client.open(requests, size)
        before, self._stream = self._stream, await let_in(self._client, opening, self._listener)
        if before is not None:  # one is always open, so that a drain waits
            self._client.release(before)
        news = await self._collect(self._stream, n)
        self._client.let_go(self._held)
        self._held, self._asked = self._asked, []
        await self._client.slices.run(self._grow(searches, [news[i] for i in self._held]))

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

    def _size(self, n_requests: int, n: int, n_tokens: int) -> Size:
        return Size(n_requests, n, n_tokens, self._job.job.standing)

    async def _collect(self, stream: EventStream, n: int) -> dict[int, TokenEvent]:
        news: dict[int, TokenEvent] = {}
        while len(news) < n:
            for event in await stream.read():
                if event.finish in ("error", "cancelled"):
                    raise failure_of(event)
                news[event.id] = event
        return news

    async def _watch(self) -> None:
        await self._listener.disconnected()
        self._is_left = True
        if self._stream is not None:
            self._client.cancel(self._stream, tuple(self._stream.open))
            self._stream.fail(ClientGone())


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
