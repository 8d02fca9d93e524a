"""Errors name fields as they were sent, whatever the validator behind them calls them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvasir import LLM, BeamSearchParams, SamplingParams
from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.serve.admission import AdmissionLimits
from kvasir.serve.dialects import chat, completions
from kvasir.serve.jobs import Server, resolve_request
from kvasir.serve.slices import Slices
from kvasir.serve.text import TextModel, load_text
from kvasir.weights.source import open_model
from tests import tiny
from tests.fake_run import idle_compiler

INFO = Ready(
    model="m",
    vocab_size=tiny.VOCAB,
    max_model_len=64,
    n_blocks=8,
    block_size=16,
    numerics_id="n",
    key_root="k",
    max_num_seqs=4,
)
LONG = "a " * 60
ALIASES = (
    *("max_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "echo"),
    *("prompt", "messages", "stop_token_ids", "user", "safety_identifier", "beam_width", "n"),
)
TEXT: tuple[tuple[dict[str, Any], str], ...] = (
    ({"logprobs": 21}, "logprobs"),
    ({"echo": True, "logprobs": 21}, "logprobs"),
    ({"echo": True, "logprobs": -1, "max_tokens": 0}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 65}, "max_tokens"),
    ({"max_tokens": 30, "prompt": "z" * 40}, "max_tokens"),
    ({"prompt": "z" * 60}, "prompt"),
    ({"prompt": "z" * 70}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [tiny.VOCAB]}, "prompt"),
    ({"min_tokens": 17}, "min_tokens"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"stop": [""]}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids"),
    ({"user": "u" * 257}, "user"),
    ({"safety_identifier": "u" * 257}, "safety_identifier"),
    ({"service_tier": "x"}, "service_tier"),
    ({"priority_class": "x"}, "priority_class"),
    ({"n": 0}, "n"),
    ({"n": 17, "use_beam_search": True}, "n"),
    ({"max_tokens": 0, "use_beam_search": True}, "max_tokens"),
    ({"length_penalty": 11, "use_beam_search": True}, "length_penalty"),
)
CHAT: tuple[tuple[dict[str, Any], str], ...] = (
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"top_logprobs": 1}, "top_logprobs"),
    ({"logprobs": True, "use_beam_search": True}, "logprobs"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 65}, "max_tokens"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"max_completion_tokens": 65}, "max_completion_tokens"),
    ({"max_completion_tokens": 60}, "max_completion_tokens"),
    ({"max_completion_tokens": 0, "use_beam_search": True}, "max_completion_tokens"),
    ({"max_completion_tokens": 4, "max_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ({"max_completion_tokens": 4, "min_tokens": 5}, "min_tokens"),
    ({"min_tokens": 60}, "min_tokens"),
    ({"messages": [{"role": "user", "content": LONG}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a" * 10**5}]}, "messages"),
    ({"messages": []}, "messages"),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def text(folder: Path) -> TextModel:
    return load_text(open_model(folder))


def _server(text: TextModel) -> Server:
    limits = AdmissionLimits(128, 10_000)
    return Server(text, INFO, limits, Slices(), lambda: 1, 10**6, idle_compiler())


def _refused(text: TextModel, is_chat: bool, body: dict[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        asked = (chat if is_chat else completions).read(body, strict=True)
        asyncio.run(resolve_request(asked, _server(text), "m", 0.0))
    return caught.value


@pytest.mark.parametrize(
    ("is_chat", "body", "param"),
    [*((False, *row) for row in TEXT), *((True, *row) for row in CHAT)],
)
def test_the_server_names_what_was_sent(
    text: TextModel, is_chat: bool, body: dict[str, Any], param: str
) -> None:
    own = {"messages": [{"role": "user", "content": "hi"}]} if is_chat else {"prompt": "hi"}
    sent = {**own, **body}
    error = _refused(text, is_chat, sent)
    assert error.param == param and param in sent
    said = error.message.replace("the prompt ", "").partition(" needs logprobs")[0]
    said = said.partition("or 0 with")[0].partition("send max_tokens")[0]
    words = {word.strip("(),:.") for word in said.split()}
    assert not {name for name in ALIASES if name in words} - sent.keys(), error.message


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), max_model_len=64, threads=1) as made:
        yield made


@pytest.mark.parametrize(
    ("prompt", "params", "param", "said"),
    [
        ({"prompt_token_ids": [tiny.VOCAB]}, {}, "prompt_token_ids", "prompt_token_ids has token"),
        ({"prompt": "z" * 70}, {}, "prompt", "shorten prompt"),
        ({"prompt_token_ids": [5] * 70}, {}, "prompt_token_ids", "shorten prompt_token_ids"),
        ({"prompt_token_ids": [5] * 60}, {"max_tokens": None, "min_tokens": 5}, "min_tokens", ""),
        ({"prompt_token_ids": [5] * 64}, {"max_tokens": None}, "prompt_token_ids", "may have 1,"),
        ("hi", {"max_tokens": 65}, "max_tokens", "max_tokens asks for 65"),
        ("hi", {"max_tokens": 0}, "max_tokens", "or 0 with prompt_logprobs"),
        ("hi", {"prompt_logprobs": 21}, "prompt_logprobs", "prompt_logprobs must be"),
    ],
)
def test_the_offline_class_names_what_was_given(
    llm: LLM, prompt: object, params: dict[str, Any], param: str, said: str
) -> None:
    with pytest.raises(RequestError) as caught:
        llm.generate(prompt, SamplingParams(**params), use_tqdm=False)
    assert caught.value.param == param and said in caught.value.message


def test_chats_and_beams_of_the_offline_class(llm: LLM) -> None:
    with pytest.raises(RequestError) as caught:
        llm.chat([{"role": "user", "content": "z" * 70}], use_tqdm=False)
    assert caught.value.param == "messages"
    params = BeamSearchParams(beam_width=2, max_tokens=60)
    with pytest.raises(RequestError, match="holds 64") as caught:
        llm.beam_search({"prompt_token_ids": [5] * 10}, params)
    assert caught.value.param == "max_tokens"
