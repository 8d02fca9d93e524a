"""Events that are worded and written as they arrive are those that a reader would have told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kvasir.core.errors import KvasirError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.serve.chunks import Chunks
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.resolved import Resolved
from kvasir.serve.run import AnswerRun
from kvasir.serve.streams import EventStream
from kvasir.serve.text import TextModel
from tests.fake_run import heard, joined, resolved_of, run_of, said, toy_text

TALK = [{"role": "user", "content": "hi"}]
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat", {"messages": TALK}),
    "chat, two choices": ("chat", {"messages": TALK, "n": 2}),
    "chat, stop": ("chat", {"messages": TALK, "stop": "d e"}),
    "completions": ("completions", {"prompt": "hi", "echo": True}),
    "completions, usage": (
        "completions",
        {
            "prompt": "hi",
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        },
    ),
    "completions, logprobs": ("completions", {"prompt": "hi", "logprobs": 1}),
    "completions, paced": ("completions", {"prompt": "hi", "stream_interval": 3}),
    "responses": ("responses", {"input": "hi"}),
    "messages": ("messages", {"messages": TALK, "max_tokens": 9}),
    "ollama.chat": ("ollama.chat", {"messages": TALK}),
    "llama.completion": ("llama.completion", {"prompt": "hi"}),
    "tgi": ("tgi", {"inputs": "hi"}),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


class Outlet:
    """Takes events when ``takes`` says so, by how often it was asked."""

    def __init__(self, takes: Callable[[int], bool]) -> None:
        self.told: list[bytes] = []
        self.n_taken = 0
        self._n_asked = 0
        self._takes = takes

    def takes_events(self) -> bool:
        self._n_asked += 1
        return self._takes(self._n_asked)

    def tell(self, data: bytes) -> None:
        self.n_taken += 1
        self.told.append(data)


def live_run(resolved: Resolved, text: TextModel) -> tuple[AnswerRun, EventStream]:
    """Its events come while somebody listens."""
    run, stream = run_of(resolved, text, []), EventStream(0, resolved.job.n_choices, 99)
    client: Any = run.model.client

    async def submit(*_: Any, **__: Any) -> EventStream:
        return stream

    client.submit = submit
    return run, stream


def events_of(resolved: Resolved) -> list[Any]:
    """Of all choices in turn, a character each, some of which take two bytes; then their ends."""
    ids, tells = range(resolved.job.n_choices), resolved.job.params.logprobs is not None

    def scored(choice: int, text: str, finish: str | None = None) -> Any:
        event = said(choice, text, finish)
        logprobs = tuple(TokenLogprob(token, -1.0, 1) for token in event.tokens)
        return said(choice, text, finish, logprobs=logprobs) if tells else event

    more = [scored(i, char) for char in "abcäd ef" for i in ids]
    return [*more, *(scored(i, ".", "length") for i in ids)]


async def told(resolved: Resolved, text: TextModel, outlet: Outlet) -> bytes:
    """The whole stream, in the order in which a client gets it."""
    run, stream = live_run(resolved, text)

    async def listen() -> None:
        async for batch in run.batches(outlet):
            outlet.told += map(joined, batch)

    listening = asyncio.create_task(listen())
    for event in events_of(resolved):
        for _ in range(9):
            await asyncio.sleep(0)
        stream.push(event)
    await listening
    return b"".join(outlet.told)


@pytest.mark.parametrize("name", ASKED)
def test_what_is_told_at_once_is_what_a_reader_would_tell(name: str, text: TextModel) -> None:
    dialect, body = ASKED[name]
    resolved = resolved_of(DIALECTS[dialect], {**body, "stream": True, "temperature": 0}, text)
    never, always = Outlet(lambda n: False), Outlet(lambda n: True)
    at_times = Outlet(lambda n: n % 3 > 0)
    expected = _timeless(asyncio.run(told(resolved, text, never)))
    assert _timeless(asyncio.run(told(resolved, text, always))) == expected
    assert _timeless(asyncio.run(told(resolved, text, at_times))) == expected
    assert never.n_taken == 0
    if "paced" in name or "logprobs" in name:
        assert always.n_taken == 0
    else:
        assert 0 < at_times.n_taken < always.n_taken


def _timeless(data: bytes) -> bytes:
    """Without the last line, which has times in some dialects."""
    return data.rstrip().rpartition(b"\n")[0]


def test_without_an_outlet_nothing_changes(text: TextModel) -> None:
    resolved = resolved_of(DIALECTS["chat"], {"messages": TALK, "stream": True}, text)
    run = run_of(resolved, text, events_of(resolved))
    always = Outlet(lambda n: True)
    assert b"".join(asyncio.run(heard(run))) == asyncio.run(told(resolved, text, always))


def test_an_event_waits_behind_those_that_wait() -> None:
    async def run() -> None:
        found: list[int] = []

        def hear(event: TokenEvent) -> bool:
            found.append(event.tokens[0])
            return True

        stream = EventStream(0, 1, limit=9)
        stream.hear(hear)
        stream.push(said(0, "a"))  # nobody has read yet: it waits
        assert (found, stream.has_news) == ([], True)
        assert [event.tokens for event in await stream.read()] == [(97,)]
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        stream.push(said(0, "b"))
        assert (found, stream.has_news) == ([98], False)
        stream.push(said(0, "c", "stop"))  # an end is the reader's
        stream.push(said(0, "d"))
        assert found == [98]
        assert [event.tokens for event in await reading] == [(99,), (100,)]
        stream.hush()
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        stream.push(said(0, "e"))
        assert found == [98]
        assert [event.tokens for event in await reading] == [(101,)]

    asyncio.run(run())


def test_what_fails_while_it_is_told_fails_its_stream_alone() -> None:
    async def run() -> None:
        def hear(_: Any) -> bool:
            raise KvasirError("broken")

        stream = EventStream(0, 1, limit=9)
        stream.hear(hear)
        reading = asyncio.create_task(stream.read())
        await asyncio.sleep(0)
        assert stream.push(said(0, "a"))
        with pytest.raises(KvasirError, match="broken"):
            await reading

    asyncio.run(run())


class Cycle:
    """As uvicorn's, in the middle of a response."""

    def __init__(self) -> None:
        self.response_started = True
        self.response_complete = self.disconnected = False
        self.chunked_encoding: bool | None = True
        self.flow = self.transport = self
        self.write_paused = False
        self.written: list[bytes] = []
        self.write = self.written.append


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("write_paused", True),
        ("disconnected", True),
        ("response_complete", True),
        ("response_started", False),
        ("chunked_encoding", False),
        ("chunked_encoding", None),
    ],
)
def test_chunks_are_taken_while_a_response_goes_on(field: str, value: bool | None) -> None:
    cycle: Any = Cycle()
    chunks = Chunks(cycle)
    assert chunks.takes_events()
    chunks.tell(b"data: a long line of text\n\n")
    assert cycle.written == [b"1b\r\ndata: a long line of text\n\n\r\n"]
    setattr(cycle, field, value)
    assert not chunks.takes_events()


def test_the_chunks_of_a_response_that_is_gone_are_not_taken() -> None:
    cycle: Any = Cycle()
    chunks = Chunks(cycle)
    cycle.flow = cycle.transport = cycle.write = None
    del cycle
    assert not chunks.takes_events()
