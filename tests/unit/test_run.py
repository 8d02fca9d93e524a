"""A resolved request is computed without HTTP: whole, as events, or from a number on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.serve import streams
from kvasir.serve.dialects.chat import CHAT
from kvasir.serve.dialects.completions import COMPLETIONS
from kvasir.serve.frames import encode_scores
from kvasir.serve.run import Batch, after
from kvasir.serve.streams import EngineDown, EventStream
from kvasir.serve.text import TextModel
from kvasir.validation.warn import MAX_WARNINGS, bounded
from tests.fake_run import heard, joined, resolved_of, run_of, said, toy_text

MESSAGES = [{"role": "user", "content": "hi"}]
HEAD = (
    b'data: {"id":"chatcmpl-0","object":"chat.completion.chunk","created":1700000000,'
    b'"model":"toy","system_fingerprint":"kvasir-0.1.0-n:draws-2","choices":['
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def chat(text: TextModel, *events: Any, **body: Any) -> list[bytes]:
    resolved = resolved_of(CHAT, {"messages": MESSAGES, "stream": True, **body}, text)
    return asyncio.run(heard(run_of(resolved, text, events)))


def test_a_chat_in_its_bytes(text: TextModel) -> None:
    found = chat(text, said(0, 'é"', n_cached=3), said(0, "b", "stop"))
    end = b'"logprobs":null,"finish_reason":null,"stop_reason":null}]}\n\n'
    assert found == [
        HEAD + b'{"index":0,"delta":{"role":"assistant","content":""},' + end,
        HEAD + '{"index":0,"delta":{"content":"é\\""},'.encode() + end,
        HEAD
        + b'{"index":0,"delta":{"content":"b"},"logprobs":null,'
        + b'"finish_reason":"stop","stop_reason":null}]}\n\n',
        b"data: [DONE]\n\n",
    ]


def test_usage_is_told_last_or_in_each_event(text: TextModel) -> None:
    events = said(0, "a", n_cached=3), said(0, "b", "stop")
    last = chat(text, *events, stream_options={"include_usage": True})
    assert [b'"usage":null}' in event for event in last] == [True, True, True, False, False]
    assert last[-2:] == [
        HEAD + b'],"usage":{"prompt_tokens":21,"total_tokens":23,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":3}}}\n\n',
        b"data: [DONE]\n\n",
    ]
    options = {"include_usage": True, "continuous_usage_stats": True}
    each = chat(text, *events, stream_options=options)
    counts = [event.partition(b'"completion_tokens":')[2][:1] for event in each]
    assert counts == [b"0", b"1", b"2", b"2", b""]


def test_a_stream_that_fails_says_so_last(text: TextModel) -> None:
    found = chat(text, said(0, "a"), EngineDown("gone"))
    assert found[-1] == (
        b'data: {"error":{"message":"gone","type":"service_unavailable_error","param":null,'
        b'"code":"engine_down"}}\n\n'
    )


def test_a_stored_request_gives_the_same_answer(text: TextModel) -> None:
    body = {"prompt": ["ab", "c"], "n": 2, "seed": 5, "echo": True, "logprobs": 0}
    resolved = resolved_of(COMPLETIONS, body, text)
    assert resolved.job.n_choices == 4 and resolved.echoes[0].begins == (0, 1)
    score = TokenEvent(0, n_scores=1, scores=encode_scores((TokenLogprob(98, -1.0),)))
    events = [score, *(said(i, "x", "length") for i in range(4))]

    def whole() -> bytes:
        return joined(asyncio.run(run_of(resolved, text, events).whole()))

    assert whole() == whole()
    assert whole().count(b'"text":"abx"') == 2 and whole().count(b'"text":"cx"') == 2


def test_events_go_on_behind_a_number() -> None:
    async def batches() -> Any:
        for batch in ([[b"0"]], [[b"1"], [b"2"]], [], [[b"3"]]):
            yield batch

    async def behind(number: int) -> list[Batch]:
        return [batch async for batch in after(batches(), number)]

    assert asyncio.run(behind(-1)) == [[[b"0"]], [[b"1"], [b"2"]], [], [[b"3"]]]
    assert asyncio.run(behind(1)) == [[[b"2"]], [], [[b"3"]]]
    assert asyncio.run(behind(3)) == [[]]


def test_a_silent_stream_is_told_of_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 0.01)

    async def run() -> list[list[TokenEvent]]:
        stream = EventStream(0, 1, 9)
        stream.listen()
        silent = [await stream.read() for _ in range(3)]
        event = said(0, "a", "stop")
        stream.push(event)
        found = [*silent, await stream.read()]
        stream.hush()
        return found

    assert asyncio.run(run()) == [[], [], [], [said(0, "a", "stop")]]


def test_warnings_are_bounded_in_number_and_bytes_and_the_others_counted() -> None:
    few = bounded([str(i) for i in range(20)], lambda name: name)
    assert few == (*map(str, range(MAX_WARNINGS)), "4 more warnings were left out")
    long = bounded(["é" * 1000] * 5, lambda name: name)
    assert long == ("é" * 1000, "é" * 1000, "3 more warnings were left out")
    assert bounded([], lambda name: name) == ()
