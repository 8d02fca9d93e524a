"""All choices of one HTTP request, from submission to the last piece of text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from types import TracebackType

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import SamplingParams, TokenParams
from kvasir.core.request import ALIKE, PLAIN, Context, Standing
from kvasir.serve.client import AsyncClient
from kvasir.serve.exchange import ClientGone, Exchange
from kvasir.serve.metrics import ModelMetrics
from kvasir.serve.streams import EventStream
from kvasir.text.choice import Choice, Delta
from kvasir.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate: ``params.n`` choices for each prompt, choice by choice within a prompt."""

    prompts: tuple[tuple[int, ...], ...]
    params: SamplingParams
    resolved: tuple[TokenParams, ...]
    """Of the first choice of each prompt; those of the others follow from it."""
    context: Context = PLAIN
    standing: Standing = ALIKE

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.params.n

    @property
    def n_prompt_tokens(self) -> int:
        """Each prompt counted once, as it is computed once for all its choices."""
        return sum(map(len, self.prompts))

    def is_first(self, choice: int) -> bool:
        """Of its prompt: what the prompt cost is what its first choice cost."""
        return choice % self.params.n == 0


class RequestTimeout(KvasirError):
    """The server's own limit on the time of an answer."""

    code = "request_timeout"
    status = 504


class Generation:
    """An async context: entering submits, leaving cancels whatever still runs.

    While it is open it listens for the client's disconnect, which cancels at once.
    """

    def __init__(
        self,
        job: Job,
        client: AsyncClient,
        tokenizer: Tokenizer,
        exchange: Exchange,
        metrics: ModelMetrics,
        timeout: int | None = None,
    ) -> None:
        """``timeout``: seconds after the request's arrival that the answer may take."""
        self.job = job
        self.slices = client.slices
        self._client = client
        self._exchange = exchange
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._choices: dict[int, Choice] = {}
        """Those that have begun and not ended."""
        self._ended: set[int] = set()
        self._last_token: dict[int, float] = {}
        self._started = 0.0
        self._timeout = timeout

    async def __aenter__(self) -> Generation:
        self._started = time.perf_counter()
        asked = self.job.params
        self._stream = await self._client.submit(
            tuple(zip(self.job.prompts, self.job.resolved, strict=True)),
            asked.n,
            self.job.context,
            self.job.standing,
            hold_seconds=float(asked.cache_ttl or 0),
        )
        self._watch = asyncio.create_task(_watch(self._exchange, self._client, self._stream))
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        self._client.release(self._stream)
        if isinstance(error, ClientGone):
            self._metrics.cancelled()
        elif isinstance(error, KvasirError):
            self._metrics.choice_done("error")
        elif error is None:
            self._metrics.request_done(time.perf_counter() - self._started)

    @property
    def first_id(self) -> int:
        """Engine id of choice 0; those of the others follow."""
        return self._stream.first_id

    async def deltas(self) -> AsyncIterator[Sequence[Delta]]:
        """What each wake-up brings, until every choice is finished.

        Raises ClientGone, EngineDown, ChoiceFailed, RequestTimeout.
        """
        while len(self._ended) < self.job.n_choices:
            events = await self._read()
            deltas = [delta for event in events if (delta := self._apply(event)) is not None]
            if deltas:
                yield deltas

    async def _read(self) -> list[TokenEvent]:
        if self._timeout is None:
            return await self._stream.read()
        left = self._exchange.arrived + self._timeout - time.monotonic()
        try:
            async with asyncio.timeout(left):
                return await self._stream.read()
        except TimeoutError:
            raise RequestTimeout(
                f"the answer took more than {self._timeout} s: ask for less or raise "
                "--request-timeout"
            ) from None

    def _apply(self, event: TokenEvent) -> Delta | None:
        index = event.id - self._stream.first_id
        if index in self._ended:
            return None
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = Choice(index, self._tokenizer, self.job.params)
        delta = choice.feed(event)
        self._measure(index, delta)
        if delta.finish is not None:
            self._end(index, event)
        return delta

    def _end(self, index: int, event: TokenEvent) -> None:
        """``event`` ended a choice, for the engine as well or here alone."""
        self._ended.add(index)
        del self._choices[index]
        self._last_token.pop(index, None)
        if event.finish is None:
            self._client.cancel(self._stream, (event.id,))

    def _measure(self, index: int, delta: Delta) -> None:
        if delta.n_tokens:
            now = time.perf_counter()
            before = self._last_token.get(index)
            if before is None:
                self._metrics.first_token(now - self._started)
            else:
                self._metrics.next_token(now - before)
            self._last_token[index] = now
        if delta.finish is not None:
            self._metrics.choice_done(delta.finish)


async def _watch(exchange: Exchange, client: AsyncClient, stream: EventStream) -> None:
    """Ends ``stream`` when its client goes. It knows nothing of the generation that has it as a
    task: a cycle would keep both until a full collection of garbage."""
    await exchange.disconnected()
    client.cancel(stream, tuple(stream.open))
    stream.fail(ClientGone())
