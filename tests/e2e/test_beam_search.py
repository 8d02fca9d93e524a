"""Beam search over HTTP gives what the offline class gives, and leaves nothing held."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir import LLM, BeamSearchParams
from tests import tiny
from tests.e2e.conftest import StartServer
from tests.e2e.harness import Server, canaries, running_server, wait_until

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
OPTIONS: dict[str, Any] = {"max_model_len": 96, "threads": 1, "kv_memory": "1MiB"}
PROMPTS = [[5, 9, 2, 7, 1, 3, 8, 4, 6, 2, 9, 1, 7, 3, 5, 8, 2, 4], [7, 3, 3]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def one(model: Path) -> Iterator[Server]:
    with running_server(model, executor="cpu", engine=OPTIONS) as server:
        yield server


def wait_free(server: Server) -> None:
    """No beam holds a block any more; between two of its steps no request runs either."""
    wait_until(lambda: server.metric("kvasir_kv_cache_usage_perc") == 0)
    server.wait_idle()


@pytest.mark.parametrize("penalty", [1.0, 0.3])
def test_choices_are_the_beams_of_the_offline_class(
    model: Path, one: Server, penalty: float
) -> None:
    body = {"prompt": PROMPTS, "n": 3, "max_tokens": 6, "length_penalty": penalty}
    answer = one.post(TEXT, {**body, "use_beam_search": True}).json()
    params = BeamSearchParams(beam_width=3, max_tokens=6, length_penalty=penalty)
    with LLM(str(model), **OPTIONS) as llm:
        found = llm.beam_search([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
        tokenizer = llm.get_tokenizer()
    expected = []
    for output, prompt in zip(found, PROMPTS, strict=True):
        for beam in output.sequences:
            tokens = beam.tokens[len(prompt) :]
            ended = beam.finish_reason == "stop"
            text = tokenizer.decode(tokens[: len(tokens) - ended], continues=True)
            expected.append((text, beam.finish_reason))
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert [(choice["text"], choice["finish_reason"]) for choice in choices] == expected
    usage = answer["usage"]
    assert usage["prompt_tokens"] == 21 and usage["completion_tokens"] <= 36


def test_a_chat_and_many_at_once_leave_the_server_idle(one: Server) -> None:
    body = {"prompt": PROMPTS[0], "n": 4, "max_tokens": 8, "use_beam_search": True}
    alone = one.post(TEXT, body).json()["choices"]
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(one.post, TEXT, body) for _ in range(12)]
        assert all(reply.result().json()["choices"] == alone for reply in asked)
    wait_free(one)


def test_a_chat_answers_with_beams(toy: Server) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}], "n": 2, "max_tokens": 4}
    before = toy.metric("kvasir_request_success_total")
    answer = toy.post(CHAT, {**body, "use_beam_search": True, "temperature": 0}).json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert all(choice["message"]["role"] == "assistant" for choice in answer["choices"])
    assert toy.metric("kvasir_request_success_total") == before + 2
    wait_free(toy)


def test_a_client_that_leaves_ends_its_search_and_so_does_a_deadline(server: StartServer) -> None:
    body = {"prompt": "a long search", "n": 4, "max_tokens": 500, "ignore_eos": True}
    with server(faults={"seconds": 0.02}) as slow:
        with pytest.raises(httpx.ReadTimeout):
            slow.http.post(
                slow.url + TEXT, json={"model": "toy", **body, "use_beam_search": True}, timeout=1
            )
        wait_free(slow)
        assert slow.metric("kvasir_requests_cancelled_total") == 1
        late = slow.post(TEXT, {**body, "use_beam_search": True, "deadline_ms": 1000})
        assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
        wait_free(slow)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (TEXT, {"stream": True}, "stream"),
        (TEXT, {"n": 17}, "n"),
        (TEXT, {"n": 0}, "n"),
        (TEXT, {"top_p": 0.5}, "top_p"),
        (TEXT, {"stop": "x"}, "stop"),
        (TEXT, {"logprobs": 1}, "logprobs"),
        (TEXT, {"echo": True}, "echo"),
        (TEXT, {"max_tokens": 0}, "max_tokens"),
        (TEXT, {"length_penalty": 11}, "length_penalty"),
        (TEXT, {"use_beam_search": False, "length_penalty": 2}, "length_penalty"),
        (CHAT, {"logprobs": True}, "logprobs"),
        (CHAT, {"ttft_ms": 5000}, "ttft_ms"),
    ],
)
def test_what_does_not_go_together_is_a_400(
    toy: Server, path: str, body: dict[str, Any], param: str
) -> None:
    asked = {"prompt": "x"} if path == TEXT else {"messages": [{"role": "user", "content": "x"}]}
    reply = toy.post(path, {**asked, "use_beam_search": True, **body})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)


def test_others_do_not_notice(toy: Server) -> None:
    body = {"prompt": "beams", "n": 5, "max_tokens": 12, "use_beam_search": True}
    with canaries(toy):
        answers = [toy.post(TEXT, body).json()["choices"] for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
