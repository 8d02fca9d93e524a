"""What was answered before is drafted: the answer stays what it was, and the server says how much
it drafted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletion

from tests.e2e.harness import Server, running_server

PATH = "/v1/completions"
SUFFIX = '{"method": "suffix", "num_speculative_tokens": 6, "adaptive": false}'
COUNTS = tuple(
    f"kvasir_spec_decode_num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens")
)


@pytest.fixture(scope="module")
def drafting(toy_folder: Path) -> Iterator[Server]:
    sizes = {"max_model_len": 128, "speculative_config": SUFFIX}
    with running_server(
        toy_folder, executor="cpu", metrics_prefix="kvasir", engine=sizes
    ) as server:
        yield server


def answer(server: Server, **more: Any) -> dict[str, Any]:
    body = {"prompt": "of old", "max_tokens": 40, "seed": 5, "ignore_eos": True, "logprobs": 1}
    reply = server.post(PATH, {**body, **more})
    assert reply.status_code == 200
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


def counts(server: Server) -> list[float]:
    return server.metrics(*COUNTS)


def test_an_answer_that_was_given_before_is_drafted(drafting: Server) -> None:
    expected, before = answer(drafting), counts(drafting)
    assert answer(drafting) == expected
    n_drafts, n_drafted, n_accepted = (
        now - then for now, then in zip(counts(drafting), before, strict=True)
    )
    assert n_drafts <= 16 and n_drafted <= 60
    assert n_accepted >= 28, "nearly all of 40"


def test_why_nothing_was_drafted_is_told(drafting: Server) -> None:
    body = {"prompt": "of old", "max_tokens": 9, "ignore_eos": True, "speculative": False}
    found = drafting.post(PATH, body).json()
    (choice,) = drafting.get(f"/v1/requests/{found['id']}/timeline").json()["choices"]
    told = [span for span in choice["spans"] if span["kind"] == "undrafted"]
    assert [(span["detail"], span["steps"]) for span in told] == [("refused", 8)]
    (choice,) = drafting.get(f"/v1/requests/{found['id']}/why").json()["choices"]
    sentence = "the request asked for no drafts"
    assert choice["undrafted"] == [{"reason": "refused", "steps": 8, "sentence": sentence}]


def ask(client: openai.OpenAI, **more: Any) -> ChatCompletion:
    """Letters alone, which come back as the same tokens."""
    body = {"allowed_token_ids": [*range(97, 123)], "ignore_eos": True, **more.pop("body", {})}
    messages: Any = [{"role": "user", "content": "of letters"}]
    asked: Any = {"model": "toy", "max_tokens": 40, "seed": 9, "messages": messages}
    found: ChatCompletion = client.chat.completions.create(**asked, **more, extra_body=body)
    return found


def test_a_prediction_is_drafted(drafting: Server) -> None:
    """As OpenAI's client asks for it; what it brought is in the usage."""
    client = openai.OpenAI(base_url=f"{drafting.url}/v1", api_key="any")
    first = ask(client, body={"cache_salt": "first"})
    text, usage = first.choices[0].message.content, first.usage
    assert text is not None and usage is not None and usage.completion_tokens_details is None
    parts = [{"type": "text", "text": text[:20]}]
    for number, content in enumerate((text, parts)):
        prediction = {"type": "content", "content": content}
        salt = {"cache_salt": f"prediction {number}"}
        before = counts(drafting)
        found = ask(client, prediction=prediction, body=salt)
        assert found.choices[0].message.content == text
        assert found.usage is not None and found.usage.completion_tokens == 40
        details = found.usage.completion_tokens_details
        assert details is not None and details.accepted_prediction_tokens is not None
        assert details.accepted_prediction_tokens >= (8, 25)[number == 0]
        assert details.rejected_prediction_tokens is not None
        assert details.accepted_prediction_tokens <= counts(drafting)[2] - before[2]
        none = counts(drafting)
        off = ask(client, prediction=prediction, body={**salt, "speculative": False})
        assert off.choices[0].message.content == text and counts(drafting) == none
        assert off.model_extra and "is of no use" in off.model_extra["warnings"][0]
    client.close()


@pytest.mark.parametrize(
    ("field", "told"),
    [
        ({"speculative": {"method": "ngram"}}, "speculative.method is 'ngram', this engine has"),
        ({"speculative": {"n": 3}}, "speculative has 'n': it takes method and"),
        ({"speculative": 3}, "speculative: Expected"),
        ({"prediction": {"type": "text", "content": "a"}}, "prediction.type must be content"),
        ({"prediction": {"type": "content", "content": 5}}, "prediction.content must be text or"),
        ({"prediction": {"type": "content", "content": "a", "x": 1}}, "prediction has 'x'"),
        ({"prediction": {"type": "content", "content": "a" * 200}}, "prediction has 200 tokens"),
    ],
)
def test_what_cannot_be_drafted_is_refused(
    drafting: Server, field: dict[str, Any], told: str
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    reply = drafting.post("/v1/chat/completions", {"messages": messages, "max_tokens": 4, **field})
    assert reply.status_code == 400
    assert told in reply.json()["error"]["message"]


def test_a_request_without_drafts(drafting: Server) -> None:
    expected = answer(drafting, prompt="of few")
    before = counts(drafting)
    assert answer(drafting, prompt="of few", speculative=False) == expected
    assert counts(drafting) == before
    assert answer(drafting, prompt="of few", speculative={"num_speculative_tokens": 1}) == expected
    n_drafts, n_drafted, _ = (x - y for x, y in zip(counts(drafting), before, strict=True))
    assert n_drafts == n_drafted > 10, "one of each"


def test_another_salt_finds_nothing(drafting: Server) -> None:
    """Nor can its time tell what was asked."""
    asked = {"prompt": "of others", "temperature": 1.0}
    before = counts(drafting)
    expected = answer(drafting, **asked, cache_salt="mine")
    one_more = counts(drafting)
    assert answer(drafting, **asked, cache_salt="theirs") == expected
    last = counts(drafting)
    assert [x - y for x, y in zip(last, one_more, strict=True)] == [
        x - y for x, y in zip(one_more, before, strict=True)
    ], "of itself alone"
    assert answer(drafting, **asked, cache_salt="mine") == expected
    assert counts(drafting)[2] > last[2] + 20
