"""An answer that was interrupted anywhere, and goes on, is the same answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs
from msgspec.structs import force_setattr

from kvasir.core.messages import TokenEvent
from kvasir.core.request import EngineRequest
from kvasir.core.tiles import Media
from kvasir.grammar.thinking import Limited, ThinkingLimit, limit_in
from kvasir.serve.client import Size
from kvasir.serve.continued import RunLog, log_pieces, read_log, singles
from kvasir.serve.dialects.table import GENERATES
from kvasir.serve.numbered import Numbered
from kvasir.serve.resolved import Resolved
from kvasir.serve.run import after
from kvasir.serve.slices import at_once
from kvasir.serve.state import entries
from kvasir.serve.state.entries import Entry, Quota
from kvasir.serve.state.kept import drop_progress
from kvasir.serve.state.progress import SparseProgress
from kvasir.serve.state.store import Store
from kvasir.serve.streams import READ_EVENTS, EventStream
from kvasir.serve.text import TextModel
from tests.fake_run import Client, heard, resolved_of, run_of, said, toy_text

SAID = (
    said(0, "One", n_cached=3),
    said(1, "é two, "),
    said(0, ". STOP and more"),
    said(1, "three", "stop"),
    said(2, "x"),
    said(3, "", "length"),
    said(2, "yz\U0001f600", "length"),
)
"""Choice 0 ends at a stop string: the engine is told so, and has no say in it."""
BODY = {"model": "toy", "prompt": ["a", "bc"], "n": 2, "stop": "STOP", "seed": 5}


class Resuming(Client):
    """Says what is left of ``SAID`` to who goes on."""

    def __init__(self, events: Sequence[TokenEvent]) -> None:
        super().__init__(events)
        self.requests: list[EngineRequest] = []
        self.size = Size(0, 0, 0)
        self.ended: list[int] = []

    def end_thinking(self, ids: Iterable[int]) -> int:
        self.ended += ids
        return len(self.ended)

    def admit(self, size: Size) -> None:
        self.size = size

    async def open(self, requests: Numbered, size: Size) -> EventStream:
        self.requests = list(requests(40))
        assert size == self.size and size.n_choices == len(self.requests)
        return EventStream(40, len(self.requests), 10**6)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def resolved(text: TextModel, **more: Any) -> Resolved:
    return resolved_of(GENERATES["/v1/completions"], {**BODY, **more}, text)


def every_single() -> Iterator[TokenEvent]:
    for event in SAID:
        yield from singles(event)


def run_on(asked: Resolved, text: TextModel, log: RunLog) -> Any:
    run = run_of(asked, text, SAID if not log.events else ())
    force_setattr(run, "log", log)
    return run


def test_an_event_is_cut_into_tokens() -> None:
    whole = TokenEvent(7, tokens=(1, 2, 3), n_cached=4, n_scores=2, scores=b"s", finish="stop",
                       stop_id=3, prediction_hits=2, prediction_misses=4)  # fmt: skip
    first, second, third = singles(whole)
    assert [one.tokens for one in (first, second, third)] == [(1,), (2,), (3,)]
    assert [(one.n_cached, one.n_scores, one.scores) for one in (first, second)] == [
        (4, 2, b"s"),
        (0, 0, b""),
    ]
    assert [one.prediction_hits for one in (first, second, third)] == [1, 1, 0]
    assert [one.prediction_misses for one in (first, second, third)] == [4, 0, 0]
    assert [(one.finish, one.stop_id) for one in (first, second, third)] == [
        (None, None),
        (None, None),
        ("stop", 3),
    ]
    assert list(singles(TokenEvent(1, finish="length"))) == [TokenEvent(1, finish="length")]


def test_a_kept_answer_is_the_answer(text: TextModel) -> None:
    asked, log = resolved(text), RunLog()
    plain = b"".join(asyncio.run(run_of(asked, text, SAID).whole()))
    assert b"".join(asyncio.run(run_on(asked, text, log).whole())) == plain
    assert tokens_of(log.events)[1:] == tokens_of(every_single())[1:]
    assert bytes(tokens_of(log.events)[0]).startswith(b"One. STOP")


def tokens_of(events: Iterable[TokenEvent]) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(4)]
    for event in events:
        found[event.id] += event.tokens
    return found


def test_events_do_not_depend_on_what_steps_gave(text: TextModel) -> None:
    """A token of each choice at a time, whoever of them was faster."""
    asked, log = resolved(text, stream=True), RunLog()
    steps = asyncio.run(heard(run_on(asked, text, log)))
    told = asyncio.run(heard(run_on(asked, text, RunLog(log.events))))
    assert told == steps
    assert [event.id for event in log.events[:7]] == [0, 1, 2, 3, 0, 1, 2]
    for order in ((3, 2, 1, 0), (0, 1, 2, 3)):
        said = tuple(x for choice in order for x in SAID if x.id == choice)
        run = run_of(asked, text, said)
        force_setattr(run, "log", RunLog())
        assert asyncio.run(heard(run)) == steps


def test_what_is_known_is_not_asked_again(text: TextModel) -> None:
    asked, every = resolved(text), list(every_single())
    plain = b"".join(asyncio.run(run_of(asked, text, SAID).whole()))
    for cut in range(1, len(every) + 1):
        run, client = resumed(asked, text, every[:cut], every[cut:])
        assert b"".join(asyncio.run(run.whole())) == plain
        for request in client.requests:
            known = [e for e in every[:cut] if e.id == _place(request)]
            assert request.emitted == tuple(token for e in known for token in e.tokens)
            assert all(e.finish is None for e in known)
            assert request.parent < request.id


@pytest.mark.parametrize("n_known", [0, 2])
def test_scores_begin_where_they_were_asked_for_from(text: TextModel, n_known: int) -> None:
    """Also of a prompt of which nothing is known while something is of another."""
    scored = {"prompt_logprobs": 0, "prompt_logprobs_start": 4}
    asked = resolved(text, prompt=["long text", "bc bc bc"], n=1, **scored)
    known = [TokenEvent(0, n_scores=1)] * n_known or [said(1, "x")]
    run, client = resumed(asked, text, known, [])

    async def opened() -> None:
        async with run._generation():
            return

    asyncio.run(opened())
    first = client.requests[0]
    assert (len(first.prompt), first.n_scored) == (9, 3 + n_known)


def test_who_goes_on_asks_for_all_that_was_asked(text: TextModel) -> None:
    """Blocks that are held after the end, what the prompt shows, and what is predicted."""
    shown = (Media(0, 1, b"pixels", b"digest"),)
    asked = resolved(text, prompt="abc", n=1, cache_ttl=60)
    asked = structs.replace(asked, job=structs.replace(asked.job, media=shown, prediction=(1, 2)))
    run, client = resumed(asked, text, [said(0, "x")], [])

    async def opened() -> None:
        async with run._generation():
            return

    asyncio.run(opened())
    (request,) = client.requests
    assert (request.hold_seconds, request.media) == (60.0, shown)
    assert request.prediction == (1, 2)


def test_reasoning_that_was_ended_stays_ended(text: TextModel) -> None:
    """It is on disk before what follows is told, and who goes on asks for it."""
    n_kept: list[int] = []
    log = RunLog()

    async def keep() -> None:
        n_kept.append(len(log.events))

    limited = Limited(ThinkingLimit(("<",), (">",), (62,), is_open=True)).text()
    asked = resolved(text, prompt="a", n=1)
    params = structs.replace(asked.job.resolved[0], constraint=limited)
    asked = structs.replace(asked, job=structs.replace(asked.job, resolved=(params,)))
    events = (said(0, "ab"), TokenEvent(0, closes_at=2), said(0, ">c", "length"))
    plain = b"".join(asyncio.run(run_of(asked, text, (events[0], events[2])).whole()))
    run = run_of(asked, text, events)
    log.keep = keep
    force_setattr(run, "log", log)
    assert b"".join(asyncio.run(run.whole())) == plain
    assert n_kept == [5] and log.events[2] == events[1]
    again, client = resumed(asked, text, log.events[:3], log.events[3:])
    assert b"".join(asyncio.run(again.whole())) == plain
    (request,) = client.requests
    found = limit_in(request.params.constraint)
    assert request.emitted == tuple(b"ab") and found and found.thinking.closes_at == 2


@pytest.mark.parametrize("n_known", [0, 2])
def test_reasoning_that_was_to_end_is_asked_to_end_again(text: TextModel, n_known: int) -> None:
    """Of choices that go on, whether or not something was kept of them."""
    asked = resolved(text, prompt="a", n=2)
    known = [said(1, "", "length"), said(0, "x")][:n_known]
    run, client = resumed(asked, text, known, [said(0, "a", "length"), said(1, "b", "length")])
    force_setattr(run, "log", RunLog(known, ends=frozenset({0, 1})))

    async def opened() -> None:
        async with run._generation():
            return

    asyncio.run(opened())
    first = 40 if known else 0
    assert client.ended == ([first] if known else [first, first + 1])


def test_what_is_to_end_is_asked_for_by_the_next_server(tmp_path: Path) -> None:
    """Until it is known where, of choices that go on; what was said before is on disk first."""
    store = Store(tmp_path / "state", Quota(9, 9000))

    async def ask() -> None:
        progress = SparseProgress(store)
        entry = Entry("chat", "chat", b"k", "m", 1, None, 2, b"{}")
        await store.run(lambda db: entries.add(db, entry, store.quota))
        log = RunLog([said(0, "a"), TokenEvent(1, closes_at=1), said(2, "x", "length")])
        with progress.keeping(log, "chat"):
            await progress.ask_end("chat", range(4))
            assert log.ends == {0, 3}
            await progress.ask_end("another", range(4))
        found = await SparseProgress(store).load("chat")
        assert (found.events, found.ends) == (log.events, {0, 3})
        with progress.keeping(log, "chat"):
            log.add(TokenEvent(0, closes_at=4))
            await progress.flush()
        assert (await SparseProgress(store).load("chat")).ends == {3}
        await store.run(lambda db: drop_progress(db, "chat", 0))
        assert await SparseProgress(store).load("chat") == RunLog()

    asyncio.run(ask())
    store.close()


def test_others_have_turns_while_what_is_known_is_told(text: TextModel) -> None:
    asked = resolved(text, stream=True, prompt="a", n=1, max_tokens=2000)
    every = [said(0, "x") for _ in range(2000)] + [said(0, "", "length")]
    pieces = list(log_pieces(every))
    n_turns: list[int] = []

    async def count_turns() -> None:
        while True:
            n_turns[-1] += 1
            await asyncio.sleep(0)

    async def skipped(log: RunLog) -> None:
        """The client has heard all but the end."""
        counting = asyncio.create_task(count_turns())
        n_turns.append(0)
        run = run_of(asked, text, ())
        force_setattr(run, "log", log)
        async for _ in after(run.batches(), len(every)):
            n_turns.append(0)
        counting.cancel()

    log = at_once(read_log(pieces))
    assert log == RunLog(every)
    asyncio.run(skipped(log))
    assert n_turns[0] >= 2 * len(every) // READ_EVENTS


def test_a_stream_goes_on_where_it_was_cut(text: TextModel) -> None:
    asked, log = resolved(text, stream=True), RunLog()
    whole = asyncio.run(heard(run_on(asked, text, log)))
    every = log.events
    for cut in range(1, len(every) + 1):
        rest = sorted(every[cut:], key=lambda event: -event.id)
        run, _ = resumed(asked, text, every[:cut], rest)
        assert asyncio.run(heard(run)) == whole, cut


def resumed(
    asked: Resolved, text: TextModel, known: list[TokenEvent], rest: list[TokenEvent]
) -> tuple[Any, Resuming]:
    """A run that knows some events, of an engine that says the ``rest``."""
    client = Resuming(())
    run = run_on(asked, text, RunLog(list(known)))
    object.__setattr__(run.model, "client", client)
    open_before = client.open

    async def answered(requests: Numbered, size: Size) -> EventStream:
        stream = await open_before(requests, size)
        places = {_place(one): one.id for one in client.requests}
        for event in rest:
            if event.id in places:
                stream.push(_as(event, places[event.id]))
        return stream

    client.open = answered  # type: ignore[method-assign]
    return run, client


def _place(request: EngineRequest) -> int:
    """Of the choice: the seeds of the two prompts' choices are the same, the prompts are not."""
    second = request.params.seed != 5
    return 2 * (len(request.prompt) - 1) + second


def _as(event: TokenEvent, engine_id: int) -> TokenEvent:
    return structs.replace(event, id=engine_id)
