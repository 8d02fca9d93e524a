"""The official client, sync and async, on a real server process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.e2e.harness import MODEL, Server

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture
def client(toy: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=toy.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).object == "model"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("org/none")
    assert caught.value.code == "model_not_found"


def test_completion_shape(client: openai.OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt="once", max_tokens=5, seed=1)
    assert answer.object == "text_completion"
    assert answer.id.startswith("cmpl-")
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert (
        answer.usage.prompt_tokens,
        answer.usage.completion_tokens,
        answer.usage.total_tokens,
    ) == (4, 5, 9)


def test_default_lengths(client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=MODEL, prompt="once", seed=1, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16


@pytest.mark.parametrize("n", [1, 3])
def test_streamed_completion_equals_whole(client: openai.OpenAI, n: int) -> None:
    asked = {
        "model": MODEL,
        "prompt": ["one", "two"],
        "max_tokens": 40,
        "seed": 3,
        "n": n,
        "logprobs": 2,
    }
    whole = client.completions.create(**asked)
    texts = [""] * 2 * n
    tokens: list[list[str]] = [[] for _ in texts]
    offsets: list[list[int]] = [[] for _ in texts]
    finishes: list[str | None] = [None] * 2 * n
    for chunk in client.completions.create(**asked, stream=True):
        assert chunk.usage is None
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens
            offsets[choice.index] += choice.logprobs.text_offset
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices]
    assert offsets == [choice.logprobs.text_offset for choice in whole.choices]
    assert finishes == [choice.finish_reason for choice in whole.choices]
    assert len(set(texts)) == 2 * n


def test_chat_shape(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_completion_tokens=4,
        logprobs=True,
        top_logprobs=3,
        seed=5,
    )
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    content = choice.logprobs.content
    assert len(content) == 4
    assert all(len(entry.top_logprobs) == 3 and len(entry.bytes) == 1 for entry in content)
    assert content[0].top_logprobs[0].logprob >= content[0].top_logprobs[1].logprob
    decoded = bytes(byte for entry in content for byte in entry.bytes).decode("utf-8", "replace")
    assert choice.message.content == decoded


def test_streamed_chat_with_usage(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        max_tokens=6,
        seed=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 6
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6, seed=2)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1])
    assert text == whole.choices[0].message.content


def test_continuous_usage(client: openai.OpenAI) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.completions.create(
            model=MODEL,
            prompt="abc",
            max_tokens=8,
            seed=4,
            logprobs=0,
            stream=True,
            stream_options=options,
        )
    )
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 8


def test_stop_string_ends_text(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL,
        "prompt": "abc",
        "max_tokens": 64,
        "seed": 11,
        "extra_body": {"ignore_eos": True},
    }
    free = client.completions.create(**asked).choices[0].text
    stop = free[20:23]
    cut = client.completions.create(**asked, stop=[stop, "never occurs"]).choices[0]
    assert cut.text == free[: free.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.model_extra["stop_reason"] == stop
    streamed = client.completions.create(**asked, stop=stop, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == cut.text


def test_stop_string_kept_when_asked(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "abc", "max_tokens": 64, "seed": 11}
    free = client.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0].text
    stop = free[20:23]
    extra = {"ignore_eos": True, "include_stop_str_in_output": True}
    kept = client.completions.create(**asked, stop=stop, extra_body=extra).choices[0].text
    assert kept == free[: free.index(stop) + len(stop)]


def test_stop_token_id(client: openai.OpenAI) -> None:
    body = {"stop_token_ids": [65], "ignore_eos": True}
    answer = client.completions.create(
        model=MODEL, prompt="abc", logit_bias={"65": 100}, max_tokens=9, extra_body=body
    )
    assert answer.choices[0].text == ""
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].model_extra["stop_reason"] == 65
    assert answer.usage.completion_tokens == 1


def test_echo_with_logprobs(client: openai.OpenAI) -> None:
    asked = {
        "model": MODEL,
        "prompt": "hello",
        "max_tokens": 3,
        "seed": 1,
        "logprobs": 1,
        "echo": True,
    }
    choice = client.completions.create(**asked).choices[0]
    assert choice.text.startswith("hello")
    assert choice.logprobs.token_logprobs[0] is None
    assert all(value < 0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.tokens[:5] == list("hello")
    assert choice.logprobs.text_offset == list(range(8))
    chunks = [chunk.choices[0] for chunk in client.completions.create(**asked, stream=True)]
    assert "".join(chunk.text for chunk in chunks) == choice.text
    streamed = [value for chunk in chunks for value in chunk.logprobs.token_logprobs]
    assert streamed == choice.logprobs.token_logprobs


def test_r42_echo_scores_only(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "prompt": "hello", "echo": True, "max_tokens": 0}
    scored = client.completions.create(**asked, logprobs=0)
    assert scored.choices[0].text == "hello"
    assert len(scored.choices[0].logprobs.tokens) == 5
    assert scored.usage.completion_tokens == 0
    assert client.completions.create(**asked).choices[0].text == "hello"


def test_prompts_as_ids(client: openai.OpenAI) -> None:
    asked = {"model": MODEL, "max_tokens": 8, "seed": 9}
    text = client.completions.create(prompt="hi", **asked).choices[0].text
    assert client.completions.create(prompt=[104, 105], **asked).choices[0].text == text
    assert client.completions.create(prompt=[[104, 105], [104]], **asked).choices[0].text == text


def test_async_client_runs_many(toy: Server) -> None:
    async def run() -> tuple[list[str], list[str]]:
        async with openai.AsyncOpenAI(
            base_url=toy.url + "/v1", api_key="none", max_retries=0
        ) as client:

            async def one(seed: int, stream: bool) -> str:
                asked = {"model": MODEL, "prompt": "same", "max_tokens": 24, "seed": seed}
                if not stream:
                    return (await client.completions.create(**asked)).choices[0].text
                return "".join(
                    [
                        c.choices[0].text
                        async for c in await client.completions.create(**asked, stream=True)
                    ]
                )

            together = await asyncio.gather(*(one(seed, seed % 2 == 0) for seed in range(16)))
            alone = [await one(seed, False) for seed in range(16)]
            return together, alone

    together, alone = asyncio.run(run())
    assert together == alone


def test_errors_reach_the_client(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=MODEL, prompt="x", temperature=-1)
    assert bad.value.param == "temperature"
    assert bad.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="other", prompt="x")
