"""R66 to R68 of the robustness list: an answer is the same streamed and whole and from any client,
choices of ``n`` are those of single requests, and what is told of tokens fits the text."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import openai
import pytest

from kvasir.validation.seeds import choice_seed
from tests.e2e.harness import MODEL, Server, canaries

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
TALK = [{"role": "user", "content": "sing of é and 🙂"}]
N = 24


@pytest.fixture(params=["toy", "native_toy"])
def calm(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server, with canaries singing during the test; on the fake and on the native executor."""
    server: Server = request.getfixturevalue(request.param)
    with canaries(server):
        yield server


class Said(NamedTuple):
    text: str
    finish: str
    n_prompt: int
    n_output: int


def data_of(answer: str) -> list[Any]:
    """The JSON of each event."""
    lines = [line for line in answer.split("\n") if line and not line.startswith((":", "event:"))]
    told = [line.removeprefix("data:").strip() for line in lines]
    return [json.loads(line) for line in told if line != "[DONE]"]


def of_text(answer: Any) -> Said:
    choice, usage = answer["choices"][0], answer["usage"]
    counts = usage["prompt_tokens"], usage["completion_tokens"]
    text = choice["text"] if "text" in choice else choice["message"]["content"]
    return Said(text, choice["finish_reason"], *counts)


def of_chunks(events: list[Any]) -> Said:
    choices = [event["choices"][0] for event in events if event["choices"]]
    text = "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)
    usage = events[-1]["usage"]
    finish = choices[-1]["finish_reason"]
    return Said(text, finish, usage["prompt_tokens"], usage["completion_tokens"])


def of_response(answer: Any) -> Said:
    usage = answer["usage"]
    text = "".join(part["text"] for item in answer["output"] for part in item["content"])
    return Said(text, answer["status"], usage["input_tokens"], usage["output_tokens"])


def of_response_events(events: list[Any]) -> Said:
    told = of_response(events[-1]["response"])
    deltas = [event["delta"] for event in events if event["type"].endswith("text.delta")]
    assert "".join(deltas) == told.text
    return told


def of_message(answer: Any) -> Said:
    usage = answer["usage"]
    text = "".join(block["text"] for block in answer["content"])
    return Said(text, answer["stop_reason"], usage["input_tokens"], usage["output_tokens"])


def of_message_events(events: list[Any]) -> Said:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    begun, ended = events[0]["message"]["usage"], events[-2]
    text = "".join(delta["text"] for delta in deltas)
    counts = begun["input_tokens"], ended["usage"]["output_tokens"]
    return Said(text, ended["delta"]["stop_reason"], *counts)


def of_ollama(answer: Any) -> Said:
    text = answer["message"]["content"] if "message" in answer else answer["response"]
    return Said(text, answer["done_reason"], answer["prompt_eval_count"], answer["eval_count"])


def of_ollama_lines(events: list[Any]) -> Said:
    pieces = [e["message"]["content"] if "message" in e else e["response"] for e in events]
    return of_ollama(events[-1])._replace(text="".join(pieces))


def of_llama(answer: Any) -> Said:
    counts = answer["tokens_evaluated"], answer["tokens_predicted"]
    return Said(answer["content"], answer["stop_type"], *counts)


def of_llama_events(events: list[Any]) -> Said:
    return of_llama(events[-1])._replace(text="".join(event["content"] for event in events))


USAGE = {"stream_options": {"include_usage": True}}
OLLAMA = {"seed": 5, "num_predict": N}
DIALECTS: dict[str, tuple[dict[str, Any], Callable[..., Said], Callable[..., Said]]] = {
    TEXT: ({"prompt": "sing", "max_tokens": N, "seed": 5}, of_text, of_chunks),
    CHAT: ({"messages": TALK, "max_tokens": N, "seed": 5}, of_text, of_chunks),
    "/v1/responses": (
        {"input": "sing", "max_output_tokens": N, "seed": 5},
        of_response,
        of_response_events,
    ),
    "/v1/messages": (
        {"messages": TALK, "max_tokens": N, "seed": 5},
        of_message,
        of_message_events,
    ),
    "/api/chat": ({"messages": TALK, "options": OLLAMA}, of_ollama, of_ollama_lines),
    "/api/generate": ({"prompt": "sing", "options": OLLAMA}, of_ollama, of_ollama_lines),
    "/completion": ({"prompt": "sing", "n_predict": N, "seed": 5}, of_llama, of_llama_events),
}


@pytest.mark.parametrize("path", DIALECTS)
def test_r66_streamed_and_whole(calm: Server, path: str) -> None:
    body, whole_of, stream_of = DIALECTS[path]
    whole = whole_of(calm.post(path, {**body, "stream": False}).json())
    usage = USAGE if path in (TEXT, CHAT) else {}
    streamed = stream_of(data_of(calm.post(path, {**body, **usage, "stream": True}).text))
    assert streamed == whole and whole.text and whole.n_output > 1


def test_r66_the_official_client_hears_the_same(calm: Server) -> None:
    asked: dict[str, Any] = {"model": MODEL, "messages": TALK, "max_tokens": N, "seed": 5}
    plain = of_text(calm.post(CHAT, asked).json())
    with openai.OpenAI(base_url=calm.url + "/v1", api_key="none", max_retries=0) as client:
        whole = client.chat.completions.create(**asked)
        chunks = list(client.chat.completions.create(**asked, **USAGE, stream=True))
    assert of_text(whole.model_dump()) == plain
    told = [chunk.model_dump(exclude_none=True) for chunk in chunks]
    assert of_chunks(told)._replace(finish=plain.finish) == plain


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_r67_choices_are_those_of_single_requests(calm: Server, path: str) -> None:
    """Choice i has the seed that ``choice_seed`` says; as documented."""
    said = {"prompt": "sing"} if path == TEXT else {"messages": TALK}
    scored = {"logprobs": 2} if path == TEXT else {"logprobs": True, "top_logprobs": 2}
    body = {**said, **scored, "max_tokens": N, "temperature": 1.3, "n": 4, "seed": 5}
    together = calm.post(path, body).json()["choices"]
    for i in range(4):
        single = {**body, "n": 1, "seed": choice_seed(5, i)}
        (alone,) = calm.post(path, single).json()["choices"]
        assert together[i] == {**alone, "index": i}
    assert len({json.dumps({**choice, "index": 0}) for choice in together}) == 4


def test_r68_probabilities_sum_to_one(calm: Server) -> None:
    body = {"prompt": "sing", "max_tokens": 3, "seed": 5, "return_tokens_as_token_ids": True}
    low, high = (
        calm.post(TEXT, {**body, "logprob_token_ids": list(ids)}).json()["choices"][0]["logprobs"]
        for ids in (range(128), range(128, 256))
    )
    assert low["tokens"] == high["tokens"] and len(low["tokens"]) == 3
    for position, token in enumerate(low["tokens"]):
        found = low["top_logprobs"][position] | high["top_logprobs"][position]
        assert len(found) == 256
        assert low["token_logprobs"][position] == found[token]
        assert math.fsum(map(math.exp, found.values())) == pytest.approx(1, abs=1e-4)


def test_r68_an_echo_scores_as_the_answer_was_scored(native_toy: Server) -> None:
    """Bit for bit, and at the same places of the text."""
    drawn = {"prompt": "sing", "max_tokens": N, "seed": 5, "ignore_eos": True, "logprobs": 0}
    with canaries(native_toy):
        first = native_toy.post(TEXT, {**drawn, "return_token_ids": True}).json()["choices"][0]
        ids = [*b"sing", *first["token_ids"]]
        again = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
        second = native_toy.post(TEXT, again).json()["choices"][0]
    assert second["logprobs"]["token_logprobs"][4:] == first["logprobs"]["token_logprobs"]
    assert second["logprobs"]["tokens"][4:] == first["logprobs"]["tokens"]
    offsets, text = second["logprobs"]["text_offset"], second["text"]
    assert offsets == sorted(offsets) and text.startswith("sing")
    for token, (begin, end) in zip(
        second["logprobs"]["tokens"], itertools.pairwise([*offsets, len(text)]), strict=True
    ):
        assert token in ("", text[begin:end]) or "\ufffd" in text[begin:] or end == begin


@pytest.mark.parametrize("stream", [False, True])
def test_r68_stops_across_the_borders_of_tokens(calm: Server, stream: bool) -> None:
    """Tokens are bytes here: every stop of more than one lies across borders, the last one inside
    of characters."""
    free = {"prompt": "sing", "max_tokens": 80, "seed": 11, "ignore_eos": True}
    letters = {**free, "allowed_token_ids": list("abcé".encode())}
    text = calm.post(TEXT, letters).json()["choices"][0]["text"]
    for begin, size in ((20, 2), (30, 5), (40, 9)):
        stop = text[begin : begin + size]
        reply = calm.post(TEXT, {**letters, "stop": ["never", stop], "stream": stream})
        if stream:
            chunks = [event["choices"][0] for event in data_of(reply.text)]
            told, last = "".join(chunk["text"] for chunk in chunks), chunks[-1]
        else:
            last = reply.json()["choices"][0]
            told = last["text"]
        assert told == text[: text.index(stop)]
        assert (last["finish_reason"], last["stop_reason"]) == ("stop", stop)
