"""The official client of OpenAI."""

from __future__ import annotations

import asyncio
import io
import json
import time

import openai
import pytest

from .asked import KEY, MODEL, QUESTION, TALK, URL

SEEDED = {"temperature": 0.8, "seed": 7}


@pytest.fixture
def client():
    with openai.OpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_models(client):
    assert MODEL in [model.id for model in client.models.list()]
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat_streamed_equals_whole(client):
    asked = {"model": MODEL, "messages": TALK, "max_tokens": 24, "n": 2, **SEEDED}
    whole = client.chat.completions.create(**asked)
    texts = ["", ""]
    usage = None
    options = {"include_usage": True}
    for chunk in client.chat.completions.create(**asked, stream=True, stream_options=options):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
        usage = chunk.usage or usage
    assert texts == [choice.message.content for choice in whole.choices]
    assert usage == whole.usage


def test_chat_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=TALK, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds
    assert "content.done" in kinds
    assert final.choices[0].message.content


def test_logprobs(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=TALK, max_tokens=4, logprobs=True, top_logprobs=3, temperature=0
    )
    for entry in answer.choices[0].logprobs.content:
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == entry.top_logprobs[0].logprob


def test_completions(client):
    asked = {"model": MODEL, "prompt": QUESTION, "max_tokens": 12, **SEEDED}
    whole = client.completions.create(**asked)
    parts = [c.choices[0].text for c in client.completions.create(**asked, stream=True)]
    assert "".join(parts) == whole.choices[0].text


def test_responses_streamed_equals_whole(client):
    asked = {"model": MODEL, "input": QUESTION, "max_output_tokens": 24, "temperature": 0}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == whole.output_text == events[-1].response.output_text
    assert events[-1].response.usage.total_tokens == whole.usage.total_tokens


def test_responses_stream_helper(client):
    with client.responses.stream(model=MODEL, input=QUESTION, temperature=0) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text


def test_responses_are_kept_and_go_on(client):
    first = client.responses.create(model=MODEL, input="My name is Ada.", max_output_tokens=16)
    kept = client.responses.retrieve(first.id)
    assert kept.output_text == first.output_text
    second = client.responses.create(
        model=MODEL, input="What is my name?", previous_response_id=first.id, max_output_tokens=16
    )
    assert second.usage.input_tokens > first.usage.input_tokens
    items = client.responses.input_items.list(second.id)
    assert len(items.data) >= 1
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)


def test_background_response_is_followed(client):
    begun = client.responses.create(
        model=MODEL, input=QUESTION, max_output_tokens=40, background=True, temperature=0
    )
    assert begun.status in ("queued", "in_progress", "completed", "incomplete")
    events = list(client.responses.retrieve(begun.id, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    later = list(client.responses.retrieve(begun.id, stream=True, starting_after=5))
    assert later == events[6:]
    assert client.responses.retrieve(begun.id).status in ("completed", "incomplete")


def test_stored_chat_completions(client):
    made = client.chat.completions.create(
        model=MODEL, messages=TALK, max_tokens=8, store=True, metadata={"topic": "stars"}
    )
    kept = client.chat.completions.retrieve(made.id)
    assert kept.choices[0].message.content == made.choices[0].message.content
    assert made.id in [one.id for one in client.chat.completions.list()]
    client.chat.completions.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.retrieve(made.id)


def test_conversations(client):
    talk = client.conversations.create(metadata={"a": "b"})
    client.responses.create(
        model=MODEL, input="My name is Ada.", conversation=talk.id, max_output_tokens=8
    )
    items = client.conversations.items.list(talk.id)
    assert len(items.data) >= 2
    client.conversations.delete(talk.id)


def test_input_tokens(client):
    counted = client.responses.input_tokens.count(model=MODEL, input=QUESTION)
    answer = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=4)
    assert counted.input_tokens == answer.usage.input_tokens


def test_embeddings(client):
    floats = client.embeddings.create(model=MODEL, input=["one", "two"], encoding_format="float")
    packed = client.embeddings.create(model=MODEL, input=["one", "two"])
    for plain, other in zip(floats.data, packed.data, strict=True):
        assert plain.embedding == pytest.approx(other.embedding, rel=1e-6, abs=1e-9)


def test_files_and_batches(client):
    lines = [
        {
            "custom_id": f"line-{i}",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": MODEL, "messages": TALK, "max_tokens": 4, "seed": i},
        }
        for i in range(5)
    ]
    data = "\n".join(json.dumps(line) for line in lines).encode()
    kept = client.files.create(file=("lines.jsonl", io.BytesIO(data)), purpose="batch")
    assert client.files.content(kept.id).read() == data
    assert kept.id in [one.id for one in client.files.list()]
    batch = client.batches.create(
        input_file_id=kept.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    deadline = time.monotonic() + 120
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert batch.request_counts.completed == 5
    out = client.files.content(batch.output_file_id).text.splitlines()
    assert sorted(json.loads(line)["custom_id"] for line in out) == [f"line-{i}" for i in range(5)]
    client.files.delete(kept.id)


def test_errors(client):
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="no-such-model", messages=TALK)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=MODEL, messages=TALK, temperature=-1)
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=-1)


def test_async():
    async def ask():
        async with openai.AsyncOpenAI(base_url=URL + "/v1", api_key=KEY, max_retries=0) as client:
            asked = {"model": MODEL, "messages": TALK, "max_tokens": 8, **SEEDED}
            answers = await asyncio.gather(
                *(client.chat.completions.create(**asked) for _ in range(8))
            )
            stream = await client.chat.completions.create(**asked, stream=True)
            text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
            return {answer.choices[0].message.content for answer in answers} | {text}

    assert len(asyncio.run(ask())) == 1
