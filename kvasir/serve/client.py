"""The API process's side of the engine: submit, cancel, events, and whether the engine lives."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.core.messages import (
    AskTimeline,
    Cancel,
    EngineRequest,
    EngineStats,
    Fatal,
    Ready,
    Release,
    ResetPrefixCache,
    Shutdown,
    StepEvents,
    Submit,
    TimelineAnswer,
    ToEngine,
    TokenEvent,
)
from kvasir.core.params import TokenParams
from kvasir.engine.tokenlog import TokenLog, open_log
from kvasir.sampling.standing import ALIKE, Standing
from kvasir.serve import frames
from kvasir.serve.admission import Admission
from kvasir.serve.streams import EngineDown, EventStream

logger = logging.getLogger("kvasir.client")

READ_BUFFER = 2**20
"""Bytes that asyncio reads ahead."""

MAX_QUERIES = 64
"""Questions about timelines that wait for the engine."""

Prompt = tuple[tuple[int, ...], TokenParams]


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
        self._ready = asyncio.Event()
        self._max_requests = max_requests
        self._admission = Admission(max_queued_requests, max_queued_tokens)
        self._stream_buffer = stream_buffer
        self._observe = observe
        self._live: dict[int, _Live] = {}
        self._closing = False
        self._n_streams = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._next_id = 1
        self._queries: dict[int, asyncio.Future[TimelineAnswer]] = {}
        self._n_queries = 0
        self._writer: asyncio.StreamWriter | None = None

    async def run(
        self, sock: socket.socket, death: Callable[[], str] = lambda: "the engine process ended"
    ) -> None:
        """Read what the engine says until it ends; then every open stream has failed. ``death``
        says why it ended, and may take a moment."""
        reader, self._writer = await asyncio.open_unix_connection(sock=sock, limit=READ_BUFFER)
        try:
            while (payload := await _read(reader)) is not None:
                self._handle(payload)
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

    def submit(
        self,
        prompts: Sequence[Prompt],
        standing: Standing = ALIKE,
        ttft_by: float | None = None,
        answer_by: float | None = None,
        hold_seconds: float = 0.0,
    ) -> EventStream:
        """One stream for all ``prompts``, due at times of the monotonic clock. Raises EngineDown,
        or CapacityError at ``max_requests`` and when the queue is full."""
        n_tokens = sum(len(prompt) for prompt, _ in prompts)
        self.admit(len(prompts), n_tokens)
        first = self._next_id
        parents = _parents([prompt for prompt, _ in prompts], first)
        return self.open(
            EngineRequest(
                first + i,
                prompt,
                params,
                cache_salt=standing.cache_salt,
                priority=standing.priority,
                priority_class=standing.priority_class,
                tenant=standing.tenant,
                ttft_by=ttft_by,
                answer_by=answer_by,
                parent=parent,
                hold_seconds=hold_seconds,
            )
            for i, ((prompt, params), parent) in enumerate(zip(prompts, parents, strict=True))
        )

    def admit(self, n_choices: int, n_tokens: int) -> None:
        """Raises EngineDown, or CapacityError when there is no room for ``n_choices`` of
        ``n_tokens`` in all their prompts."""
        info = self.info
        if self.state != "ready" or info is None:
            raise EngineDown(self.failure)
        if self._n_streams >= self._max_requests:
            error = CapacityError(
                f"{self._n_streams} requests run or wait, the limit is {self._max_requests}: "
                "try again later or raise --max-requests"
            )
            error.retry_after = self.stats.first_wait
            raise error
        self._admission.check(self.stats, info.max_num_seqs, n_choices, n_tokens)

    def open(self, requests: Iterable[EngineRequest]) -> EventStream:
        """One stream for admitted requests, whose ids are ``next_id`` and those after it. Raises
        EngineDown."""
        sent, info = tuple(requests), self.info
        if self.state != "ready" or info is None:
            raise EngineDown(self.failure)
        stream = EventStream(self._next_id, len(sent), self._stream_buffer)
        self._send(Submit(sent))
        self._admission.sent(len(sent), sum(len(request.prompt) for request in sent))
        keys = {"key_root": info.key_root, "numerics_id": info.numerics_id}
        self._next_id += len(sent)
        self._n_streams += 1
        self._idle.clear()
        self._live.update((r.id, _Live(stream, open_log(r, **keys))) for r in sent)
        return stream

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
        self._n_streams -= 1
        if self._n_streams == 0:
            self._idle.set()

    async def timeline(
        self, ids: Sequence[int], n_steps: int = 0, *, with_blocks: bool = False
    ) -> TimelineAnswer:
        """What the engine remembers of choices and of its last steps, and with ``with_blocks`` what
        running ones hold. Raises EngineDown, or
        CapacityError when too many ask at once."""
        if self.state != "ready":
            raise EngineDown(self.failure)
        if len(self._queries) >= MAX_QUERIES:
            raise CapacityError(
                f"{MAX_QUERIES} questions about timelines wait for the engine: try again later"
            )
        self._n_queries += 1
        query = self._n_queries
        answer = self._queries[query] = asyncio.get_running_loop().create_future()
        try:
            self._send(AskTimeline(query, tuple(ids), n_steps, with_blocks))
            found: TimelineAnswer = await answer
            return found
        finally:
            del self._queries[query]

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
        return self._n_streams

    def abort(self, error: KvasirError) -> None:
        """End every running request with ``error``."""
        for stream in {live.stream for live in self._live.values()}:
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

    def _handle(self, payload: bytes) -> None:
        message = frames.decode_from_engine(payload)
        if isinstance(message, StepEvents):
            self._dispatch(message)
        elif isinstance(message, Ready):
            self.info, self.state, self.failure = message, "ready", ""
            self._ready.set()
        elif isinstance(message, TimelineAnswer):
            query = self._queries.get(message.query)
            if query is not None and not query.done():
                query.set_result(message)
        elif isinstance(message, Fatal):
            self._die(message.message)

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
        for query in self._queries.values():
            if not query.done():
                query.set_exception(EngineDown(f"the engine stopped: {reason}"))
        self._ready.set()
        self.dead.set()


def _parents(prompts: Sequence[tuple[int, ...]], first: int) -> list[int]:
    """Choices of one prompt fork from the first of them; -1 for that one."""
    owners: dict[tuple[int, ...], int] = {}
    found = []
    for number, prompt in enumerate(prompts, start=first):
        owner = owners.setdefault(prompt, number)
        found.append(-1 if owner == number else owner)
    return found


async def _read(reader: asyncio.StreamReader) -> bytes | None:
    """The next payload, None at the end of the stream (also inside a frame)."""
    try:
        (length,) = frames.LENGTH.unpack(await reader.readexactly(frames.LENGTH.size))
        frames.check_length(length)
        return await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
