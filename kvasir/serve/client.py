"""The API process's side of the engine: submit, cancel, events, and whether the engine lives.

What was asked for and told is in the token logs, and outlives the engine: ``serve.supervisor`` puts
another in its place, and ``resume`` goes on there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.core.messages import EngineStats, Ready
from kvasir.core.request import ALIKE, EngineRequest, Standing
from kvasir.serve.admission import Admission, AdmissionLimits, reserve
from kvasir.serve.choices import choices
from kvasir.serve.departed import Departed
from kvasir.serve.engine_counts import EngineCounts
from kvasir.serve.gate import Gate
from kvasir.serve.ledger import Ledger
from kvasir.serve.link import Link
from kvasir.serve.messages import Freeze, Submit
from kvasir.serve.numbered import COMMON, Common, Numbered, Prompt, numbered
from kvasir.serve.replay import Live
from kvasir.serve.slices import Slices, Work
from kvasir.serve.streams import EngineDown, EventStream, FatalRequest
from kvasir.serve.suspects import Bans, Suspects
from kvasir.serve.tokenlog import open_log
from kvasir.serve.totals import without_memory
from kvasir.serve.wanted import NOTHING, Size, bytes_beside, check_bytes
from kvasir.timing.records import Holding
from kvasir.timing.timeline import Timeline


class AsyncClient:
    """One engine, many requests. Lives in one event loop; not thread-safe.

    ``state`` is "starting", "ready", "restarting", "asleep", "waking" (in these three requests are
    taken, and wait) or "dead", for ever.
    """

    def __init__(
        self,
        *,
        max_requests: int,
        stream_buffer: int,
        max_queued_requests: int,
        max_queued_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self.ready_at = 0.0
        """When the engine that lives began to take requests, by ``clock``."""
        self.counts = EngineCounts()
        self.ledger = Ledger(self.counts, clock)
        self.state = "starting"
        self.failure = "the engine has not started yet"
        self.info: Ready | None = None
        self.dead = asyncio.Event()
        self.is_held = False
        """While it is asleep: that requests do not wake it."""
        self.n_probes = 0
        """Requests of the server's own among those that were opened."""
        self.wants_engine: Callable[[], None] = lambda: None
        """Called for a request that waits for an engine."""
        self.gate = Gate(self.ledger.freeze)
        self._n_opened = 0
        self._ready = asyncio.Event()
        self._max_requests = max_requests
        self._admission = Admission(max_queued_requests, max_queued_tokens)
        self._stream_buffer = stream_buffer
        self._bans = Bans(clock)
        self._streams: dict[EventStream, Size] = {}
        """Those that are not released."""
        self._departed = Departed()
        self._idle = asyncio.Event()
        self._idle.set()
        self._next_id = 1
        self._link: Link | None = None
        """Where new requests go; None while they wait."""
        self._n_unsent = 0
        self._tokens_unsent = 0
        """Of choices that were admitted, and are sent in a moment."""

    def limit(
        self,
        *,
        max_requests: int,
        stream_buffer: int,
        max_queued_requests: int,
        max_queued_tokens: int,
    ) -> None:
        """Other bounds, for requests that come from now on."""
        self._max_requests, self._stream_buffer = max_requests, stream_buffer
        self._admission.max_requests = max_queued_requests
        self._admission.max_tokens = max_queued_tokens

    @property
    def stats(self) -> EngineStats:
        """Counters are those of all engines so far."""
        return self.ledger.stats

    @property
    def timeline(self) -> Timeline:
        return self.ledger.timeline

    @property
    def slices(self) -> Slices:
        return self.ledger.slices

    async def resume(self, link: Link, info: Ready, suspects: Suspects) -> None:
        """Go on with another engine, or begin with the first. Requests are taken meanwhile, and
        sent in the end."""
        self.ledger.connect(link)
        if self.gate.is_frozen:
            link.send(Freeze(is_frozen=True))
        self.info, stats, live = info, self.stats, self.ledger.live
        self._departed.clear()
        self._admission.n_sent = stats.n_received + self._n_unsent + len(live)
        n_tokens = sum(len(x.log.request.prompt) for x in live.values())
        self._admission.tokens_sent = stats.tokens_received + self._tokens_unsent + n_tokens
        await self.ledger.resume(link, info, suspects)
        self._link = link
        self.state, self.failure, self.ready_at = "ready", "", self._clock()
        self._ready.set()

    def lost(self, reason: str) -> None:
        """The engine has ended, and another will take its place."""
        self._link = None
        self.ledger.disconnect()
        self.state, self.failure = "restarting", reason

    def fall_asleep(self, *, is_held: bool) -> None:
        """The engine has ended for as long as nobody needs it, or with ``is_held`` for as long as
        the operator says."""
        self._link = None
        self.ledger.disconnect()
        self.ledger.questions.sleep()
        self.ledger.stats = without_memory(self.stats)
        self.state, self.failure, self.is_held = "asleep", "the engine sleeps", is_held

    def waken(self) -> None:
        """Another is being started."""
        self.state, self.failure, self.is_held = "waking", "the engine wakes", False
        self.counts.is_asleep = False

    def convict(self, request_id: int, why: str) -> None:
        """End a request that ended the engine, and refuse it for a while."""
        live = self.ledger.live.get(request_id)
        if live is not None:
            self._bans.add(live.log.request)
            error = FatalRequest(f"this request ended the engine twice: {why}")
            self.ledger.fail(live.stream, error)

    def die(self, reason: str) -> None:
        """There is no engine any more, and will be none."""
        if self.state == "dead":
            return
        self._link = None
        self.state, self.failure = "dead", reason
        error = EngineDown(f"the engine stopped: {reason}")
        self.abort(error)
        self.ledger.end(error)
        self._ready.set()
        self.dead.set()

    async def wait_ready(self) -> Ready:
        """Sizes of the engine, once there was one. Raises EngineDown when there will be none."""
        await self._ready.wait()
        if self.info is None or self.state == "dead":
            raise EngineDown(self.failure)
        return self.info

    @property
    def limits(self) -> AdmissionLimits:
        """Of one request. Raises EngineDown."""
        info = self._open_info()
        return self._admission.limits(info.max_num_seqs, info.max_model_len)

    async def submit(
        self,
        prompts: Sequence[Prompt],
        n: int = 1,
        standing: Standing = ALIKE,
        common: Common = COMMON,
    ) -> EventStream:
        """One stream for ``n`` choices of each of ``prompts``. Raises EngineDown, or
        CapacityError at ``max_requests`` and when the queue is full."""
        n_tokens = sum(len(prompt) for prompt, _ in prompts)
        constraint = prompts[0][1].constraint if prompts else ""
        n_bytes = bytes_beside(common.media, constraint, common.prediction)
        size = Size(len(prompts), n, n_tokens, standing, n_bytes)
        self.admit(size)
        return await self.open(numbered(prompts, n, standing, common), size)

    def admit(self, size: Size) -> None:
        """Raises EngineDown, or CapacityError when there is no room for ``size``."""
        info = self._open_info()
        try:
            self._check_room(size, info, has_few=False)
        except CapacityError:
            if not self._has_few(size):
                raise
            self._check_room(size, info, has_few=True)
        check_bytes(size, self._streams.values())

    def _check_room(self, size: Size, info: Ready, *, has_few: bool) -> None:
        limit = self._max_requests + has_few * reserve(self._max_requests)
        if self.n_streams >= limit:
            error = CapacityError(
                f"{self.n_streams} requests run or wait, the limit is {limit}: "
                "try again later or raise --max-requests"
            )
            error.retry_after = self.stats.first_wait
            raise error
        asked = size.n_choices, size.n_queued_tokens
        excess = self._admission.excess(self._streams, self._waits) if has_few else 0
        self._admission.check(self.stats, info.max_num_seqs, *asked, has_few=has_few, excess=excess)

    def _waits(self, request_id: int) -> bool:
        """Whether a choice has no token yet."""
        live = self.ledger.live.get(request_id)
        return live is None or not live.log.emitted

    def _has_few(self, new: Size) -> bool:
        """Whether what is kept beyond the bounds may be used. 0.15 ms beside 1,000 streams."""
        owner = new.standing.owner
        mine = [x for x in self._streams.items() if x[1].standing.owner == owner]
        n_choices, n_tokens = self._departed.of(owner, self.stats.n_received)
        n_choices += new.n_choices + sum(len(stream.open) + size.n_to_come for stream, size in mine)
        n_tokens += sum(x.n_queued_tokens + x.tokens_to_come for x in (new, *(y for _, y in mine)))
        is_few = self._admission.is_few(n_choices, n_tokens)
        return is_few and len(mine) < reserve(self._max_requests)

    async def open(self, requests: Numbered, size: Size) -> EventStream:
        """One stream for the choices of admitted ``requests``, whose ids count up by ``size.n``: it
        begins when no pause keeps it waiting. Raises EngineDown."""
        stream = EventStream(self._next_id, size.n_choices, self._stream_buffer)
        sending = self._begin(stream, requests, size)
        self._n_opened += 1
        try:
            await self.gate.pass_through(stream)
            await self.slices.run(sending)
        except BaseException:
            self.release(stream)
            raise
        return stream

    async def go_on(self, stream: EventStream, requests: Numbered, size: Size) -> None:
        """More of ``stream``, whose choices have ended: it runs, and no pause keeps it waiting. The
        rest as in ``open``."""
        stream.open.update(range(self._next_id, self._next_id + size.n_choices))
        await self.slices.run(self._begin(stream, requests, size))

    def _begin(self, stream: EventStream, requests: Numbered, size: Size) -> Work[None]:
        """What sends them. Raises EngineDown."""
        info, first = self._open_info(), self._next_id
        self._admission.sent(size.n_choices, size.n_queued_tokens)
        self._next_id += size.n_choices
        self._forget(stream)
        self._streams[stream] = size
        self._admission.expect(size.n_to_come, size.tokens_to_come)
        self._idle.clear()
        if self._link is None:
            self.wants_engine()
        sending = self._sending(stream, requests(first), size, info)
        next(sending)  # what has not begun would not end either, when this is cut short
        return sending

    @property
    def running(self) -> list[EventStream]:
        """Of requests that no pause keeps waiting."""
        return [stream for stream in self._streams if stream not in self.gate.waiting]

    @property
    def owes_work(self) -> bool:
        """Whether the engine would go on if it could."""
        has_work = self.ledger.has_work and not self.gate.is_frozen
        return has_work or self.ledger.questions.are_open

    def _sending(
        self, stream: EventStream, requests: Iterable[EngineRequest], size: Size, info: Ready
    ) -> Work[None]:
        """A stream that ended meanwhile sends no more."""
        n_left, tokens_left = size.n_choices, size.n_queued_tokens
        self._unsent(n_left, tokens_left)
        try:
            yield
            for request in requests:
                if request.id not in stream.open:
                    return
                self._check_ban(request)
                link = self._link
                if link is not None:
                    link.send(Submit(request, size.n))
                n_tokens = size.n * len(request.prompt)
                n_left, tokens_left = n_left - size.n, tokens_left - n_tokens
                self._unsent(-size.n, -n_tokens)
                for choice in choices(request, size.n):
                    log = open_log(choice, key_root=info.key_root, numerics_id=info.numerics_id)
                    self.ledger.live[choice.id] = Live(stream, log, link)
                yield
        finally:
            self._unsent(-n_left, -tokens_left)
            self._admission.sent(-n_left, -tokens_left)

    def _unsent(self, n: int, n_tokens: int) -> None:
        self._n_unsent += n
        self._tokens_unsent += n_tokens

    def _check_ban(self, request: EngineRequest) -> None:
        """Raises FatalRequest."""
        if (seconds := self._bans.left(request)) > 0:
            raise FatalRequest(
                f"this request ended the engine twice: it is refused for {seconds:.0f} s more"
            )

    def _open_info(self) -> Ready:
        """Raises EngineDown."""
        if self.state in ("starting", "dead") or self.info is None:
            raise EngineDown(self.failure)
        return self.info

    @property
    def n_asked(self) -> int:
        """Requests of clients so far."""
        return self._n_opened - self.n_probes

    def let_go(self, ids: Sequence[int]) -> None:
        """The blocks that ended requests hold are not wanted any more."""
        self.ledger.let_go(ids)

    def cancel(self, stream: EventStream, ids: Sequence[int]) -> None:
        """End choices; ids that ended already are fine. Their events no longer arrive."""
        self._note_departed(stream, ids)
        self.ledger.cancel(stream, ids)

    def _note_departed(self, stream: EventStream, ids: Sequence[int]) -> None:
        """These are cancelled, and the engine may not have received those that were sent: what was
        not, as while a pause keeps it waiting, is taken out of the queue at once."""
        size, n_sent = self._streams.get(stream), self._admission.n_sent - self._n_unsent
        if size is not None and n_sent > self.stats.n_received:
            n = len(stream.open.intersection(ids) & self.ledger.live.keys())
            n_tokens = size.n_queued_tokens * n // size.n_choices
            self._departed.add(size.standing.owner, n, n_tokens, n_sent)

    def release(self, stream: EventStream) -> None:
        """Every submitted stream is given back once; what still runs is cancelled."""
        self.cancel(stream, tuple(stream.open))
        self._forget(stream)
        if not self._streams:
            self._idle.set()

    def _forget(self, stream: EventStream) -> None:
        size = self._streams.pop(stream, NOTHING)
        self._admission.expect(-size.n_to_come, -size.tokens_to_come)

    def end_thinking(self, ids: Iterable[int]) -> int:
        """As in the ledger."""
        return self.ledger.end_thinking(ids)

    async def holdings(self) -> tuple[Holding, ...]:
        """What running choices hold; who asks meanwhile gets the same answer. Raises EngineDown."""
        self._open_info()
        return () if self.state == "asleep" else await self.ledger.questions.holdings()

    async def reset_prefix_cache(self) -> None:
        """Returns when requests find nothing of what was computed before, in this engine or in the
        next; at once while it sleeps, and its disk is emptied first when it wakes. Raises
        EngineDown."""
        self._open_info()
        asked = self.ledger.questions.begin_reset(is_alive=self.ledger.is_connected)
        if self.state != "asleep":
            await asyncio.shield(asked)

    def reset_mm_cache(self) -> None:
        """Requests that come later have the rows of their images computed: by this engine, or the
        next, which begins with none. Raises EngineDown."""
        self._open_info()
        self.ledger.forget_media()

    async def idle(self) -> None:
        """Returns when no request is open."""
        await self._idle.wait()

    @property
    def n_streams(self) -> int:
        """Requests submitted and not yet released."""
        return len(self._streams)

    def abort(self, error: KvasirError) -> None:
        """End every request with ``error``, those included of which nothing is sent yet."""
        self.gate.open()
        for stream in self._streams:
            self.ledger.fail(stream, error)
