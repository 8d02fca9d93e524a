"""The API process's side of the engine: submit, cancel, events, and whether the engine lives."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.core.messages import (
    AskHoldings,
    Cancel,
    EngineStats,
    Fatal,
    HoldingsAnswer,
    News,
    Ready,
    Release,
    ResetPrefixCache,
    Shutdown,
    StepEvents,
    Submit,
    ToEngine,
    TokenEvent,
)
from kvasir.core.params import TokenParams
from kvasir.core.request import ALIKE, PLAIN, Context, EngineRequest, Standing
from kvasir.core.timeline import Holding
from kvasir.engine.choices import choices
from kvasir.engine.tokenlog import TokenLog, open_log
from kvasir.serve import frames
from kvasir.serve.admission import Admission, Limits, reserve
from kvasir.serve.slices import Slices, Work
from kvasir.serve.streams import EngineDown, EventStream, n_reads
from kvasir.timing.timeline import Timeline

logger = logging.getLogger("kvasir.client")

READ_BUFFER = 2**16
"""Bytes that asyncio reads ahead: an engine that is faster than its readers waits for them."""

Ids = tuple[int, ...]
Prompt = tuple[Ids, TokenParams]


@dataclass(frozen=True, slots=True)
class Size:
    """Of what one stream is for."""

    n_requests: int
    n: int
    """Choices of each."""
    n_tokens: int
    """Of the prompts of all requests, each counted once."""
    standing: Standing = ALIKE

    @property
    def n_choices(self) -> int:
        return self.n_requests * self.n


@dataclass(frozen=True, slots=True)
class _Live:
    """A choice that the engine computes."""

    stream: EventStream
    log: TokenLog
    """With it another engine can go on where this one stopped."""


class AsyncClient:
    """One engine, many requests. Lives in one event loop; not thread-safe.

    ``state`` is "starting", "ready" or "dead", and never goes back.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        stream_buffer: int,
        max_queued_requests: int,
        max_queued_tokens: int,
        observe: Callable[[StepEvents], None] | None = None,
    ) -> None:
        self.stats = EngineStats()
        self.state = "starting"
        self.failure = "the engine has not started yet"
        self.info: Ready | None = None
        self.dead = asyncio.Event()
        self.timeline = Timeline(time.monotonic)
        """What the engine has told: a copy of its own."""
        self.slices = Slices()
        self._ready = asyncio.Event()
        self._max_requests = max_requests
        self._admission = Admission(max_queued_requests, max_queued_tokens)
        self._stream_buffer = stream_buffer
        self._observe = observe
        self._live: dict[int, _Live] = {}
        self._closing = False
        self._streams: dict[EventStream, Size] = {}
        """Those that are not released."""
        self._idle = asyncio.Event()
        self._idle.set()
        self._next_id = 1
        self._holdings: asyncio.Future[tuple[Holding, ...]] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def run(
        self, sock: socket.socket, death: Callable[[], str] = lambda: "the engine process ended"
    ) -> None:
        """Read what the engine says until it ends; then every open stream has failed. ``death``
        says why it ended, and may take a moment."""
        reader, self._writer = await asyncio.open_unix_connection(sock=sock, limit=READ_BUFFER)
        try:
            while (payload := await _read(reader)) is not None:
                for _ in range(self._handle(payload)):
                    await asyncio.sleep(0)
            self._die("it was told to end" if self._closing else await asyncio.to_thread(death))
        except (msgspec.DecodeError, msgspec.ValidationError, frames.FrameError) as error:
            self._die(f"the engine process sent what is not a message: {error}")
        finally:
            self._die("the connection to the engine process was closed")
            self._writer.close()

    async def wait_ready(self) -> Ready:
        """Sizes of the engine. Raises EngineDown when it died first."""
        await self._ready.wait()
        if self.info is None or self.state == "dead":
            raise EngineDown(self.failure)
        return self.info

    @property
    def limits(self) -> Limits:
        """Of one request. Raises EngineDown."""
        info = self._open_info()
        return self._admission.limits(info.max_num_seqs, info.max_model_len)

    async def submit(
        self,
        prompts: Sequence[Prompt],
        n: int = 1,
        context: Context = PLAIN,
        standing: Standing = ALIKE,
        hold_seconds: float = 0.0,
    ) -> EventStream:
        """One stream for ``n`` choices of each of ``prompts``. Raises EngineDown, or
        CapacityError at ``max_requests`` and when the queue is full."""
        n_tokens = sum(len(prompt) for prompt, _ in prompts)
        size = Size(len(prompts), n, n_tokens, standing)
        self.admit(size)
        first = self._next_id
        owners: dict[Ids, int] = {}

        def request(number: int, prompt: Ids, params: TokenParams) -> EngineRequest:
            """A prompt that occurs again forks from where it occurs first."""
            owner = owners.setdefault(prompt, number)
            return EngineRequest(
                number,
                prompt,
                params,
                context,
                standing,
                parent=-1 if owner == number else owner,
                hold_seconds=hold_seconds,
            )

        requests = (request(first + i * n, *prompt) for i, prompt in enumerate(prompts))
        return await self.open(requests, size)

    def admit(self, size: Size) -> None:
        """Raises EngineDown, or CapacityError when there is no room for ``size``."""
        info, has_few = self._open_info(), self._has_few(size)
        limit = self._max_requests + has_few * reserve(self._max_requests)
        if self.n_streams >= limit:
            error = CapacityError(
                f"{self.n_streams} requests run or wait, the limit is {limit}: "
                "try again later or raise --max-requests"
            )
            error.retry_after = self.stats.first_wait
            raise error
        sizes = size.n_choices, size.n_tokens
        self._admission.check(self.stats, info.max_num_seqs, *sizes, has_few=has_few)

    def _has_few(self, new: Size) -> bool:
        """Whether who asks for ``new`` may use what is kept beyond the bounds."""
        owner = new.standing.owner
        mine = [x for x in self._streams.items() if x[1].standing.owner == owner]
        n_choices = new.n_choices + sum(len(stream.open) for stream, _ in mine)
        n_tokens = new.n_tokens + sum(size.n_tokens for _, size in mine)
        is_few = self._admission.is_few(n_choices, n_tokens)
        return is_few and len(mine) < reserve(self._max_requests)

    async def open(self, requests: Iterable[EngineRequest], size: Size) -> EventStream:
        """One stream for the choices of admitted ``requests``, whose ids count up from ``next_id``
        by ``size.n``. Raises EngineDown."""
        info = self._open_info()
        stream = EventStream(self._next_id, size.n_choices, self._stream_buffer)
        self._admission.sent(size.n_choices, size.n * size.n_tokens)
        self._next_id += size.n_choices
        self._streams[stream] = size
        self._idle.clear()
        sending = self._sending(stream, requests, size, info)
        next(sending)  # what has not begun would not end either, when this is cut short
        try:
            await self.slices.run(sending)
        except BaseException:
            self.release(stream)
            raise
        return stream

    def _sending(
        self, stream: EventStream, requests: Iterable[EngineRequest], size: Size, info: Ready
    ) -> Work[None]:
        """A stream that ended meanwhile sends no more."""
        n_left, tokens_left = size.n_requests, size.n_tokens
        try:
            yield
            for request in requests:
                if request.id not in stream.open:
                    return
                self._send(Submit(request, size.n))
                n_left, tokens_left = n_left - 1, tokens_left - len(request.prompt)
                for choice in choices(request, size.n):
                    log = open_log(choice, key_root=info.key_root, numerics_id=info.numerics_id)
                    self._live[choice.id] = _Live(stream, log)
                yield
        finally:
            self._admission.sent(-size.n * n_left, -size.n * tokens_left)

    def _open_info(self) -> Ready:
        """Raises EngineDown."""
        if self.state != "ready" or self.info is None:
            raise EngineDown(self.failure)
        return self.info

    @property
    def next_id(self) -> int:
        """The id of the next request."""
        return self._next_id

    def let_go(self, ids: Sequence[int]) -> None:
        """The blocks that ended requests hold are not wanted any more."""
        if ids and self.state == "ready":
            self._send(Release(tuple(ids)))

    def cancel(self, stream: EventStream, ids: Sequence[int]) -> None:
        """End choices; ids that ended already are fine. Their events no longer arrive."""
        live = tuple(i for i in ids if i in stream.open)
        for i in live:
            stream.open.discard(i)
            self._live.pop(i, None)
        if live and self.state == "ready":
            self._send(Cancel(live))

    def release(self, stream: EventStream) -> None:
        """Every submitted stream is given back once; what still runs is cancelled."""
        self.cancel(stream, tuple(stream.open))
        self._streams.pop(stream, None)
        if not self._streams:
            self._idle.set()

    async def holdings(self) -> tuple[Holding, ...]:
        """What running choices hold; who asks meanwhile gets the same answer. Raises EngineDown."""
        self._open_info()
        if self._holdings is None:
            self._holdings = asyncio.get_running_loop().create_future()
            self._send(AskHoldings())
        return await asyncio.shield(self._holdings)

    def reset_prefix_cache(self) -> None:
        """Before any request that is submitted later. Raises EngineDown."""
        if self.state != "ready":
            raise EngineDown(self.failure)
        self._send(ResetPrefixCache())

    async def idle(self) -> None:
        """Returns when no request is open."""
        await self._idle.wait()

    @property
    def n_streams(self) -> int:
        """Requests submitted and not yet released."""
        return len(self._streams)

    def abort(self, error: KvasirError) -> None:
        """End every request with ``error``, those included of which nothing is sent yet."""
        for stream in self._streams:
            self.cancel(stream, tuple(stream.open))
            stream.fail(error)

    def shutdown(self, *, drain: bool) -> None:
        """Tell the engine to end, after its requests or at once. Its end is then no failure."""
        self._closing = True
        if self.state == "ready" or (self.state == "starting" and self._writer is not None):
            self._send(Shutdown(drain))

    def _send(self, message: ToEngine) -> None:
        if self._writer is None:
            raise EngineDown(self.failure)
        self._writer.write(frames.encode(message))

    def _handle(self, payload: bytes) -> int:
        """How often the readers of the streams need a turn before the next frame."""
        message = frames.decode_from_engine(payload)
        if isinstance(message, StepEvents):
            self._dispatch(message)
            return n_reads(message.events)
        if isinstance(message, News):
            for item in message.items:
                self.timeline.add(item)
        elif isinstance(message, Ready):
            self.info, self.state, self.failure = message, "ready", ""
            self._ready.set()
        elif isinstance(message, HoldingsAnswer):
            asked, self._holdings = self._holdings, None
            if asked is not None:
                asked.set_result(message.holdings)
        elif isinstance(message, Fatal):
            self._die(message.message)
        return 1

    def _dispatch(self, message: StepEvents) -> None:
        self.stats = message.stats
        for event in message.events:
            self._deliver(event)
        if self._observe is not None:
            self._observe(message)

    def _deliver(self, event: TokenEvent) -> None:
        live = self._live.get(event.id)
        if live is None:
            return
        live.log.record(event)
        if not live.stream.push(event):
            self.cancel(live.stream, tuple(live.stream.open))
            live.stream.overflow()
        elif event.finish is not None:
            del self._live[event.id]

    def _die(self, reason: str) -> None:
        if self.state == "dead":
            return
        if not self._closing:
            logger.error("the engine is down: %s", reason)
        self.state, self.failure = "dead", reason
        self.abort(EngineDown(f"the engine stopped: {reason}"))
        asked, self._holdings = self._holdings, None
        if asked is not None:
            asked.set_exception(EngineDown(f"the engine stopped: {reason}"))
            asked.exception()  # who asked may be gone
        self._ready.set()
        self.dead.set()


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    """The next payload, None at the end of the stream (also inside a frame)."""
    try:
        (length,) = frames.LENGTH.unpack(await reader.readexactly(frames.LENGTH.size))
        frames.check_length(length)
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
