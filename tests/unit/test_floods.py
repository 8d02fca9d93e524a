"""Work in slices: what an engine does between steps, an event loop in a pass, a frame at a time."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import Iterator
from itertools import count, pairwise

import msgspec
import pytest

from kvasir.core.messages import EngineStats, Ready, StepEvents, TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.request import Context, EngineRequest
from kvasir.core.sizes import EngineSizes
from kvasir.core.tiles import media_at
from kvasir.engine.engine import Engine
from kvasir.exec.fake import FakeExecutor
from kvasir.sched.scheduler import Scheduler
from kvasir.serve import frames, framing
from kvasir.serve.choices import choices
from kvasir.serve.client import AsyncClient, Size
from kvasir.serve.errands import IDLE_SECONDS, MIN_SECONDS, SHARE, Errands
from kvasir.serve.link import Link
from kvasir.serve.messages import (
    AskHoldings,
    CacheReset,
    Cancel,
    HoldingsAnswer,
    News,
    ResetPrefixCache,
    Submit,
)
from kvasir.serve.outbox import MAX_ITEMS, Outbox
from kvasir.serve.slices import Slices, Work
from kvasir.serve.streams import EngineDown
from kvasir.serve.suspects import Suspects
from kvasir.timing.records import Mark
from kvasir.timing.timeline import Timeline
from kvasir.validation.params import resolve_choices
from kvasir.validation.sampling import SamplingParams
from tests.sizes import config_of

PARAMS = TokenParams(seed=5, max_tokens=3, logit_bias=tuple((i, 1.0) for i in range(101)))
PROMPT = tuple(range(2, 66))


def engine(max_num_seqs: int = 4) -> Engine:
    spec = EngineSizes(101, 256, max_num_seqs, 64, 64, 16)
    config = config_of(256, max_num_seqs, 64, 64, 16, enable_prefix_caching=True)
    return Engine(FakeExecutor(spec), Scheduler(config))


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def received(sock: socket.socket) -> list[object]:
    """All messages that arrived."""
    sock.settimeout(0.05)
    found: list[object] = []
    try:
        while (payload := framing.receive(sock)) is not None:
            found.append(frames.decode_from_engine(payload))
    except TimeoutError:
        pass
    return found


# Choices


def test_choices_share_everything_but_the_seed() -> None:
    first, *others = choices(EngineRequest(7, PROMPT, PARAMS, Context("s")), 100)
    assert [x.id for x in others] == list(range(8, 107))
    assert all(x.prompt is PROMPT and x.parent == 7 and x.context == Context("s") for x in others)
    assert all(x.params.logit_bias is PARAMS.logit_bias for x in others)
    assert first.parent == -1
    assert len({x.params.seed for x in (first, *others)}) == 100


def test_choices_are_those_of_a_request_that_is_resolved_alone() -> None:
    asked = SamplingParams(n=5, seed=3, prompt_logprobs=1, max_tokens=3)
    alone = resolve_choices(asked, vocab_size=101, max_model_len=256, n_prompt=64, eos_ids=(1,))
    shared = choices(EngineRequest(0, PROMPT, alone[0]), 5)
    assert tuple(x.params for x in shared) == alone


def test_a_submit_is_as_large_as_its_prompt_whatever_the_choices() -> None:
    one = frames.encode(Submit(EngineRequest(1, PROMPT, PARAMS)))
    many = frames.encode(Submit(EngineRequest(1, PROMPT, PARAMS), 128))
    assert len(many) <= len(one) + 8


def test_waiting_choices_share_their_prompt_and_running_ones_do_not() -> None:
    made = engine(max_num_seqs=2)
    made.submit(choices(EngineRequest(0, PROMPT, PARAMS), 50))
    requests = made._scheduler._requests
    assert len({id(x.tokens) for x in requests.values()}) == 1
    made.step()
    running = [x for x in requests.values() if x.slot >= 0]
    assert running and all(len({id(x.tokens), id(requests[49].tokens)}) == 2 for x in running)
    while made.has_work:
        made.step()
        assert all(tuple(x.tokens[:64]) == PROMPT for x in requests.values())
        waiting = [x for x in requests.values() if x.slot < 0]
        assert all(len(x.tokens) == 64 for x in waiting)


# Between two steps


class Gaps:
    """Errands whose clock goes on by a tenth of a millisecond at every look."""

    def __init__(self, sock: socket.socket) -> None:
        self.engine = engine()
        ticks = count()
        self.errands = Errands(self.engine, Outbox(sock), lambda: next(ticks) * 1e-4)

    @property
    def n_received(self) -> int:
        return self.engine.stats().n_received


def test_a_gap_takes_a_tenth_of_a_step_and_the_rest_waits(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    gaps = Gaps(pair[0])
    gaps.errands.take(Submit(EngineRequest(0, PROMPT, PARAMS), 128))
    gaps.errands.run(0.02, is_idle=False)
    assert gaps.n_received == pytest.approx(SHARE * 0.02 / 1e-4, abs=1)
    before = gaps.n_received
    gaps.errands.run(0.0, is_idle=False)
    assert gaps.n_received - before == pytest.approx(MIN_SECONDS / 1e-4, abs=1)
    assert gaps.errands
    for _ in range(200):
        gaps.errands.run(0.0, is_idle=False)
    assert gaps.n_received == 128
    assert not gaps.errands


def test_an_idle_engine_takes_more_and_still_not_everything(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    gaps = Gaps(pair[0])
    gaps.errands.take(Submit(EngineRequest(0, PROMPT, PARAMS), 128))
    gaps.errands.run(0.0, is_idle=True)
    assert gaps.n_received == pytest.approx(IDLE_SECONDS / 1e-4, abs=1)


def test_pixels_that_come_again_are_kept_once(pair: tuple[socket.socket, socket.socket]) -> None:
    """Choices that another engine had begun come one by one, each with the images of its prompt."""
    taken: list[EngineRequest] = []

    class Takes:
        def submit(self, requests: tuple[EngineRequest, ...]) -> None:
            taken.extend(requests)

    errands = Errands(Takes(), Outbox(pair[0]))  # type: ignore[arg-type]
    for i, shade in enumerate((b"a", b"a", b"b")):
        request = EngineRequest(i, PROMPT, PARAMS, media=(media_at(0, 1, shade * 12),))
        sent = msgspec.msgpack.encode(Submit(request))  # by another process
        errands.take(msgspec.msgpack.decode(sent, type=Submit))
    errands.run(1.0, is_idle=True)
    first, again, other = (request.media[0] for request in taken)
    assert again is first and other is not first
    assert (first.pixels, other.pixels) == (b"a" * 12, b"b" * 12)
    refs = [weakref.ref(first), weakref.ref(other)]
    taken.clear()
    del first, again, other
    assert [ref() for ref in refs] == [None, None]


def test_a_gap_without_time_does_one_piece(pair: tuple[socket.socket, socket.socket]) -> None:
    made = engine()
    clock = iter([0.0, 100.0])
    errands = Errands(made, Outbox(pair[0]), lambda: next(clock))
    errands.take(Submit(EngineRequest(0, PROMPT, PARAMS), 9))
    errands.run(0.01, is_idle=False)
    assert made.stats().n_received == 1


def test_cancels_come_after_what_they_cancel_and_in_slices(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    gaps = Gaps(pair[0])
    gaps.errands.take(Submit(EngineRequest(0, PROMPT, PARAMS), 60))
    gaps.errands.take(Cancel(tuple(range(60))))
    seen = []
    while gaps.errands:
        gaps.errands.run(0.01, is_idle=False)
        seen.append((gaps.n_received, gaps.engine.stats().n_cancelled))
    assert seen[-1] == (60, 60)
    assert all(
        after[0] + after[1] - before[0] - before[1] <= 11 for before, after in pairwise(seen)
    )
    ended = gaps.engine.step().events
    assert {event.finish for event in ended} == {"cancelled"} and len(ended) == 60


def test_a_question_is_answered_in_its_turn(pair: tuple[socket.socket, socket.socket]) -> None:
    gaps = Gaps(pair[0])
    gaps.errands.take(Submit(EngineRequest(0, PROMPT, PARAMS)))
    gaps.errands.run(1.0, is_idle=True)
    gaps.engine.step()
    gaps.errands.take(AskHoldings())
    gaps.errands.take(ResetPrefixCache())
    gaps.errands.run(1.0, is_idle=False)
    answer, reset = received(pair[1])
    assert reset == CacheReset()
    assert isinstance(answer, HoldingsAnswer)
    assert [x.id for x in answer.holdings] == [0]


# Frames


def test_the_events_of_a_large_step_come_in_parts(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    outbox, timeline = Outbox(pair[0]), Timeline(lambda: 1.0)
    outbox.explain(timeline)
    for i in range(300):
        timeline.queued(i, 3)
    events = tuple(TokenEvent(i, (5,)) for i in range(600))
    outbox.step(StepEvents(events, EngineStats(step=9)))
    found = received(pair[1])
    news = [x for x in found if isinstance(x, News)]
    told = [x for x in found if isinstance(x, StepEvents)]
    assert found == [*news, *told], "what explains events comes before them"
    assert [event for part in told for event in part.events] == list(events)
    assert all(len(part.events) <= MAX_ITEMS and part.stats.step == 9 for part in told)
    assert [item.id for part in news for item in part.items if isinstance(item, Mark)] == [
        *range(300)
    ]


def test_a_step_without_news_still_tells_the_statistics(
    pair: tuple[socket.socket, socket.socket],
) -> None:
    Outbox(pair[0]).step(StepEvents((), EngineStats(step=3)))
    assert received(pair[1]) == [StepEvents((), EngineStats(step=3))]


def test_a_timeline_that_is_told_the_same_is_a_copy() -> None:
    made, wire = engine(), msgspec.msgpack.Encoder()
    copy, told = Timeline(lambda: 0.0), []
    made.timeline.listener = told.append
    made.submit(choices(EngineRequest(0, PROMPT, PARAMS), 9))
    made.cancel(7)
    while made.has_work:
        made.step()
    for item in msgspec.msgpack.decode(wire.encode(News(tuple(told))), type=News).items:
        copy.add(item)
    assert copy.recent(1000) == made.timeline.recent(1000) != ()
    stories = [made.timeline.story(i) for i in range(9)]
    assert [copy.story(i) for i in range(9)] == stories
    assert all(story is not None and story.state == "finished" for story in stories)


# The event loop


def test_a_pass_of_the_loop_does_one_slice_however_many_have_work() -> None:
    """Each piece lasts for a fifth of a slice, and 20 requests have 20 each."""
    now, done = [0.0], []
    slices = Slices(1.0, lambda: now[0])

    def work(number: int) -> Work[int]:
        for _ in range(20):
            now[0] += 0.2001
            done.append(number)
            yield
        return number

    async def run() -> list[int]:
        per_pass: list[int] = []
        working = [asyncio.create_task(slices.run(work(i))) for i in range(20)]
        while not all(task.done() for task in working) and len(per_pass) < 1000:
            before = len(done)
            await asyncio.sleep(0)
            per_pass.append(len(done) - before)
        assert [await task for task in working] == list(range(20))
        return per_pass

    per_pass = asyncio.run(run())
    assert len(done) == 400
    assert max(per_pass) == 5
    assert len(set(done[:105])) == 20, "long work goes in turns"


def test_work_that_fails_or_is_left_lets_others_go_on() -> None:
    slices, closed = Slices(0.001), []

    def failing() -> Work[None]:
        yield
        raise ValueError("no")

    def endless() -> Work[None]:
        try:
            while True:
                yield
        finally:
            closed.append(True)

    async def run() -> None:
        with pytest.raises(ValueError, match="no"):
            await slices.run(failing())
        left = asyncio.create_task(slices.run(endless()))
        await asyncio.sleep(0.01)
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        assert closed == [True]

        def short() -> Work[str]:
            yield
            return "done"

        assert await slices.run(short()) == "done"

    asyncio.run(run())


READY = Ready("m", 101, 256, 64, 16, "test", "root", 4)


def test_logs_share_the_prompt_and_a_stream_that_ended_sends_no_more() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        client = AsyncClient(
            max_requests=9, stream_buffer=9, max_queued_requests=999, max_queued_tokens=9999
        )
        link = await Link.open(ours)
        await client.resume(link, READY, Suspects())
        stream = await client.submit([(PROMPT, PARAMS)], n=100)
        logs = [live.log for live in client.ledger.live.values()]
        assert len(logs) == len(stream.open) == 100
        assert all(x.request.prompt is PROMPT for x in logs)
        assert len({x.request.params.seed for x in logs}) == 100
        assert client._admission.n_sent == 100

        class Left(Exception):
            pass

        def leaving(first: int) -> Iterator[EngineRequest]:
            yield EngineRequest(first, PROMPT, PARAMS)
            raise Left

        with pytest.raises(Left):
            await client.open(leaving, Size(3, 1, 3 * len(PROMPT)))
        assert client._admission.n_sent == 101, "what was not sent is not waited for"
        assert client._admission.tokens_sent == 101 * len(PROMPT)
        assert client.n_streams == 1
        client.release(stream)
        theirs.close()
        link.close()

    asyncio.run(run())


def test_what_waits_for_its_turn_to_be_sent_is_given_up_whole() -> None:
    """Cut short, or ended with the engine, before the first of it was sent."""

    async def run() -> None:
        ours, theirs = socket.socketpair()
        client = AsyncClient(
            max_requests=9, stream_buffer=9, max_queued_requests=999, max_queued_tokens=9999
        )
        link = await Link.open(ours)
        await client.resume(link, READY, Suspects())
        async with client.slices._turn:
            cut = asyncio.create_task(client.submit([(PROMPT, PARAMS)], n=100))
            waits = asyncio.create_task(client.submit([(PROMPT, PARAMS)], n=50))
            await asyncio.sleep(0)
            assert client._admission.n_sent == 150
            cut.cancel()
            await asyncio.wait([cut])
            assert client._admission.n_sent == 50
            theirs.close()
            link.close()
            client.die("it ended")
        stream = await waits
        with pytest.raises(EngineDown):
            await asyncio.wait_for(stream.read(), 5)
        client.release(stream)
        assert (client._admission.n_sent, client._admission.tokens_sent) == (0, 0)
        assert client.n_streams == 0
        assert not client.ledger.live

    asyncio.run(run())
