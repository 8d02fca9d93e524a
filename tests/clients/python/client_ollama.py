"""The official client of Ollama."""

from __future__ import annotations

import asyncio

import ollama
import pytest

from .asked import KEY, MODEL, QUESTION, TALK, URL

OPTIONS = {"temperature": 0, "num_predict": 16}


@pytest.fixture
def client():
    return ollama.Client(host=URL, headers={"Authorization": f"Bearer {KEY}"})


def test_chat_streamed_equals_whole(client):
    whole = client.chat(model=MODEL, messages=TALK, options=OPTIONS)
    parts = list(client.chat(model=MODEL, messages=TALK, options=OPTIONS, stream=True))
    assert "".join(part.message.content for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count
    assert parts[-1].prompt_eval_count == whole.prompt_eval_count > 0
    assert whole.done_reason in ("stop", "length")
    assert whole.total_duration >= whole.eval_duration > 0


def test_generate_goes_on_with_its_context(client):
    first = client.generate(model=MODEL, prompt=QUESTION, options=OPTIONS)
    again = list(client.generate(model=MODEL, prompt=QUESTION, options=OPTIONS, stream=True))
    assert "".join(part.response for part in again) == first.response
    more = client.generate(model=MODEL, prompt="And Spain?", context=first.context, options=OPTIONS)
    assert more.prompt_eval_count > first.prompt_eval_count


def test_embed(client):
    both = client.embed(model=MODEL, input=["one", "two"])
    one = client.embed(model=MODEL, input="one")
    assert list(both.embeddings[0]) == list(one.embeddings[0])
    assert len(both.embeddings) == 2


def test_models(client):
    assert MODEL in [model.model for model in client.list().models]
    assert client.show(MODEL).details is not None
    assert MODEL in [model.model for model in client.ps().models]


def test_errors(client):
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model="no-such-model", messages=TALK)
    assert caught.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as caught:
        client.chat(model=MODEL, messages=TALK, options={"temperature": -1})
    assert caught.value.status_code == 400


def test_async():
    async def ask():
        client = ollama.AsyncClient(host=URL, headers={"Authorization": f"Bearer {KEY}"})
        parts = [
            part.message.content
            async for part in await client.chat(
                model=MODEL, messages=TALK, options=OPTIONS, stream=True
            )
        ]
        whole = await client.chat(model=MODEL, messages=TALK, options=OPTIONS)
        return "".join(parts), whole.message.content

    streamed, whole = asyncio.run(ask())
    assert streamed == whole
