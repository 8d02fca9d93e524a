"""The official client of Anthropic."""

from __future__ import annotations

import asyncio

import anthropic
import pytest

from .asked import KEY, MODEL, TALK, URL

GREEDY = {"extra_body": {"temperature": 0}}
"""The client's own list of fields lacks it."""
ASKED = {"model": MODEL, "messages": TALK, "max_tokens": 24, **GREEDY}


@pytest.fixture
def client():
    with anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0) as made:
        yield made


def test_streamed_equals_whole(client):
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert (final.usage.input_tokens, final.usage.output_tokens) == (
        whole.usage.input_tokens,
        whole.usage.output_tokens,
    )
    assert final.stop_reason == whole.stop_reason


def test_events_in_order(client):
    events = list(client.messages.create(**ASKED, stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    deltas = ["content_block_delta"] * (len(kinds) - 5)
    assert kinds == [
        "message_start",
        "content_block_start",
        *deltas,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    counted = client.messages.count_tokens(model=MODEL, messages=TALK)
    assert events[0].message.usage.input_tokens == counted.input_tokens > 0


def test_system_and_blocks(client):
    blocks = [{"role": "user", "content": [{"type": "text", "text": TALK[0]["content"]}]}]
    one = client.messages.create(**{**ASKED, "messages": blocks}, system="Be brief.")
    two = client.messages.create(**ASKED, system=[{"type": "text", "text": "Be brief."}])
    assert one.content == two.content


def test_stop_sequences(client):
    text = client.messages.create(**ASKED).content[0].text
    stop = text[len(text) // 2 :][:3]
    cut = client.messages.create(**ASKED, stop_sequences=[stop])
    assert cut.stop_reason == "stop_sequence"
    assert cut.stop_sequence == stop
    assert cut.content[0].text == text[: text.index(stop)]


def test_errors(client):
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(**{**ASKED, "model": "no-such-model"})
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(**{**ASKED, "extra_body": {"temperature": -1}})
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert caught.value.body["type"] == "error"


def test_async():
    async def ask():
        async with anthropic.AsyncAnthropic(base_url=URL, api_key=KEY, max_retries=0) as client:
            answers = await asyncio.gather(*(client.messages.create(**ASKED) for _ in range(4)))
            return {answer.content[0].text for answer in answers}

    assert len(asyncio.run(ask())) == 1
