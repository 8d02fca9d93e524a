"""All choices of one HTTP request, from submission to the last piece of text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from math import inf
from types import TracebackType
from typing import Any, Protocol, TypeVar

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent
from kvasir.serve.client import AsyncClient
from kvasir.serve.exchange import ClientGone, while_wanted
from kvasir.serve.metrics import ModelMetrics
from kvasir.serve.numbered import Common
from kvasir.serve.resolved import Ids, Job
from kvasir.serve.stopwatch import Stopwatch
from kvasir.serve.streams import SILENCE_SECONDS, EventStream
from kvasir.text.choice import Choice, Delta
from kvasir.timing.timeline import Timeline
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.reading import bound

Value = TypeVar("Value")

GRACE_SECONDS = 0.5
"""Beyond a deadline, in which the engine says so itself, and more of it."""


class Listener(Protocol):
    """Who waits for an answer: an exchange, or nobody."""

    arrived: float
    """When the request came: seconds of the machine's monotonic clock."""

    async def disconnected(self) -> None:
        """Returns when the answer is not wanted any more."""
        ...

    def note(self, values: Mapping[str, object]) -> None:
        """What logs and traces may say of the answer."""
        ...


class Nobody:
    """The listener of an answer that is computed for later."""

    def __init__(
        self,
        arrived: float | None = None,
        note: Callable[[Mapping[str, object]], None] = lambda values: None,
    ) -> None:
        """``arrived``: now, where nothing else is said; ``note`` is told what is noted."""
        self.arrived = time.monotonic() if arrived is None else arrived
        self._note = note

    async def disconnected(self) -> None:
        await asyncio.Event().wait()

    def note(self, values: Mapping[str, object]) -> None:
        self._note(values)


class RequestTimeout(KvasirError):
    """The server's own limit on the time of an answer."""

    code = "request_timeout"
    status = 504


class DeadlineExceeded(KvasirError):
    """The request's own limit, which no engine tells that sleeps or stands still."""

    code = "deadline_exceeded"
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
        listener: Listener,
        metrics: ModelMetrics,
        timeout: int | None = None,
        submitted: Callable[[int], None] = lambda first: None,
    ) -> None:
        """``timeout``: seconds after the request's arrival that the answer may take; ``submitted``
        is told the engine's id of choice 0, those of the others follow."""
        self.job = job
        self.slices = client.slices
        self._client = client
        self._listener = listener
        self._metrics = metrics
        self._tokenizer = tokenizer
        self._reading = job.reading and bound(job.reading, tokenizer)
        self._choices: dict[int, Choice] = {}
        """Those that have begun and not ended."""
        self._ended: set[int] = set()
        self._timeout = timeout
        self._submitted = submitted
        self.silence: float = SILENCE_SECONDS
        """After which ``deltas`` gives nothing."""

    async def __aenter__(self) -> Generation:
        try:
            self._stream = await self._entered()
        except ClientGone:
            self._metrics.cancelled()
            raise
        self._stream.silence = self.silence
        self._stream.listen()
        self._submitted(self._stream.first_id)
        self._stopwatch = Stopwatch(
            self._metrics,
            self.job.standing,
            self.job.n_prompt_of,
            self._listener.arrived,
            partial(_started, self._client.timeline, self._engine_ids()),
        )
        self._watch = asyncio.create_task(watch(self._listener, self._client, self._stream))
        return self

    async def _entered(self) -> EventStream:
        """Raises what ``let_in`` and ``_in_time`` raise."""
        return await self._in_time(lambda: let_in(self._client, self._open(), self._listener))

    async def _open(self) -> EventStream:
        """Raises EngineDown, CapacityError."""
        asked = self.job.params
        return await self._client.submit(
            tuple(zip(self.job.prompts, self.job.resolved, strict=True)),
            asked.n,
            self.job.standing,
            Common(
                self.job.context,
                float(asked.cache_ttl or 0),
                self.job.pooling,
                self.job.n_scored,
                self.job.seconds,
                self.job.media,
                self.job.prediction,
            ),
        )

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._watch.cancel()
        self._stream.hush()
        self._client.release(self._stream)
        sizes = {"prompt_tokens": self.job.n_prompt_tokens}
        self._listener.note({**sizes, **self._stopwatch.totals()})
        if isinstance(error, ClientGone):
            self._metrics.cancelled()
        elif isinstance(error, KvasirError):
            self._metrics.choice_done("error", self.job.standing)

    def report(self) -> dict[str, object]:
        """Times of an answer whose choices have all ended."""
        return self._stopwatch.report()

    async def deltas(self) -> AsyncIterator[Sequence[Delta]]:
        """What each wake-up brings, until every choice is finished; nothing after every
        ``silence`` seconds without news.

        Raises ClientGone, EngineDown, ChoiceFailed, RequestTimeout.
        """
        read = self._reader()
        while not self._is_complete:
            events = await read()
            deltas = [delta for event in events if (delta := self._apply(event)) is not None]
            if deltas or not (events or self._is_complete):
                yield deltas

    def tell(self, tell: Callable[[Delta], None], may_tell: Callable[[], bool]) -> None:
        """From now on ``tell`` is given what is new as it arrives, while it may be; what is left,
        and the end of each choice, is in ``deltas``."""

        def hear(event: TokenEvent) -> bool:
            if not may_tell():
                return False
            delta = self._apply(event)
            if delta is not None:
                tell(delta)
                if delta.finish is not None and self._is_complete:
                    self._stream.nudge()
            return True

        self._stream.hear(hear)

    @property
    def _is_complete(self) -> bool:
        return len(self._ended) == self.job.n_choices

    def _reader(self) -> Callable[[], Awaitable[list[TokenEvent]]]:
        """Gives what the engine said since, or nothing after a while of silence."""
        return self._stream.read if self._end_by == inf else self._read_in_time

    async def _read_in_time(self) -> list[TokenEvent]:
        return await self._in_time(self._stream.read)

    async def _in_time(self, work: Callable[[], Coroutine[Any, Any, Value]]) -> Value:
        """What ``work`` returns. Raises RequestTimeout, DeadlineExceeded."""
        while (end := self._end_by) != inf:
            try:
                async with asyncio.timeout(end - time.monotonic()):
                    return await work()
            except TimeoutError:
                if end == self._end_by:  # what came meanwhile has not moved it
                    raise self._late(end) from None
        return await work()

    @property
    def _end_by(self) -> float:
        """When the next of the limits is over, on the monotonic clock."""
        return min(self._due, self._times_out)

    @property
    def _due(self) -> float:
        """By the request's own limits."""
        standing, has_begun = self.job.standing, bool(self._choices or self._ended)
        return min(inf if has_begun else standing.ttft_by, standing.answer_by) + GRACE_SECONDS

    @property
    def _times_out(self) -> float:
        return inf if self._timeout is None else self._listener.arrived + self._timeout

    def _late(self, end: float) -> KvasirError:
        return timed_out(self._timeout) if end == self._times_out else late()

    def _apply(self, event: TokenEvent) -> Delta | None:
        index = self._index(event)
        if index in self._ended or event.closes_at is not None:
            return None
        choice = self._choices.get(index)
        if choice is None:
            choice = Choice(index, self._tokenizer, self.job.params, self._reading)
            self._choices[index] = choice
        delta = choice.feed(event)
        self._measure(index, delta)
        if delta.finish is not None:
            self._end(index, event)
        return delta

    def _measure(self, index: int, delta: Delta) -> None:
        if delta.tokens:
            self._stopwatch.tokens(index, len(delta.tokens), delta.n_cached)
        if delta.finish is None:
            return
        self._stopwatch.finished(index, delta.finish)
        form = None if self._reading is None else self._reading.format
        if delta.n_calls and form is not None:
            self._metrics.calls_made(form.name, delta.n_calls, is_cut=delta.is_cut)

    def _engine_ids(self) -> Ids:
        """Of all choices."""
        first = self._stream.first_id
        return tuple(range(first, first + self.job.n_choices))

    def _index(self, event: TokenEvent) -> int:
        """Of the choice that ``event`` tells of."""
        return event.id - self._stream.first_id

    def _end(self, index: int, event: TokenEvent) -> None:
        """``event`` ended a choice, for the engine as well or here alone."""
        self._ended.add(index)
        del self._choices[index]
        if event.finish is None:
            self._client.cancel(self._stream, (event.id,))


def timed_out(seconds: int | None) -> RequestTimeout:
    return RequestTimeout(
        f"the answer took more than {seconds} s: ask for less or raise --request-timeout"
    )


def late() -> DeadlineExceeded:
    return DeadlineExceeded(
        "the time that the request allows is over, and the engine sleeps, is paused or is being "
        "started: allow more time, or try again later"
    )


async def let_in(
    client: AsyncClient, opening: Coroutine[Any, Any, EventStream], listener: Listener
) -> EventStream:
    """The stream that ``opening`` opens. Who leaves while the operator pauses gives the place up
    that it waits in. Raises ClientGone, and what ``opening`` raises."""
    if not client.gate.is_closed:
        return await opening
    return await while_wanted(opening, listener.disconnected, client.release)


def _started(timeline: Timeline, ids: Ids, choice: int) -> float | None:
    return timeline.started(ids[choice])


async def watch(listener: Listener, client: AsyncClient, stream: EventStream) -> None:
    """Ends ``stream`` when its client goes. It knows nothing of the generation that has it as a
    task: a cycle would keep both until a full collection of garbage."""
    await listener.disconnected()
    client.cancel(stream, tuple(stream.open))
    stream.fail(ClientGone())
