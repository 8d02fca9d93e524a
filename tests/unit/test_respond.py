"""When a stream begins, and what it says while there is nothing to say."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvasir.core.errors import CapacityError
from kvasir.serve import streams
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.exchange import Exchange
from kvasir.serve.resolved import Resolved
from kvasir.serve.routes_generate import respond
from kvasir.serve.streams import EventStream
from kvasir.serve.text import TextModel
from tests.fake_run import resolved_of, run_of, said, toy_text

TALK = [{"role": "user", "content": "hi"}]
ASKED: dict[str, dict[str, Any]] = {
    "chat": {"messages": TALK},
    "responses": {"input": "hi"},
    "messages": {"messages": TALK, "max_tokens": 9},
    "ollama.chat": {"messages": TALK},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


async def sent(resolved: Resolved, text: TextModel, feed: Any) -> list[dict[str, Any]]:
    """What a client gets while ``feed`` plays the engine."""
    found: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        found.append(message)

    run = run_of(resolved, text, [])
    client: Any = run.model.client
    stream = EventStream(0, 1, 99)

    async def submit(*_: Any, **__: Any) -> EventStream:
        return stream

    client.submit = submit
    exchange: Any = Exchange({"headers": []}, send, send, None)  # type: ignore[arg-type]
    answering = asyncio.create_task(respond(run, exchange))
    await feed(stream, found)
    await answering
    return found


def answered(name: str, text: TextModel, feed: Any) -> list[dict[str, Any]]:
    resolved = resolved_of(DIALECTS[name], {**ASKED[name], "stream": True}, text)
    return asyncio.run(sent(resolved, text, feed))


@pytest.mark.parametrize("name", ASKED)
def test_headers_wait_for_the_first_token(name: str, text: TextModel) -> None:
    async def feed(stream: EventStream, found: list[Any]) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        assert found == []
        stream.push(said(0, "a", "stop"))

    found = answered(name, text, feed)
    assert found[0]["status"] == 200 and found[-1]["body"] == b""


@pytest.mark.parametrize("name", ASKED)
def test_a_refusal_before_the_first_token_has_a_status(name: str, text: TextModel) -> None:
    async def feed(stream: EventStream, found: list[Any]) -> None:
        stream.fail(CapacityError("full"))

    with pytest.raises(CapacityError):
        answered(name, text, feed)


@pytest.mark.parametrize("name", ASKED)
def test_silence_begins_the_stream_and_is_told(
    name: str, text: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "SILENCE_SECONDS", 0.01)

    async def feed(stream: EventStream, found: list[Any]) -> None:
        while not found or (name != "ollama.chat" and len(found) < 4):
            await asyncio.sleep(0.001)
        stream.push(said(0, "a", "stop"))

    found = answered(name, text, feed)
    assert found[0]["type"] == "http.response.start" and found[0]["status"] == 200
    bodies = b"".join(message.get("body", b"") for message in found)
    silence = b"event: ping\n" if name == "messages" else b": \n\n"
    assert (silence in bodies) == (name != "ollama.chat")
    if name == "messages":
        assert bodies.index(b"message_start") < bodies.index(b"ping")
