"""Whatever a body holds: a dialect reads it, or refuses it by name; nothing else comes of it."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.core.errors import RequestError
from kvasir.serve.dialects.table import DIALECTS, GENERATES
from kvasir.serve.jobs import resolve_request
from kvasir.serve.resolved import Resolved
from kvasir.serve.text import TextModel
from tests.fake_run import toy_server, toy_text
from tests.forms import n_of
from tests.fuzz_values import change_json

TALK = [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
PART = {"type": "input_text", "text": "a"}
TENSOR = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["hi"]}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/responses": {
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}
        ],
        "instructions": "be",
        "max_output_tokens": 5,
        "include": ["message.output_text.logprobs"],
        "top_logprobs": 2,
        "metadata": {"a": "b"},
        "text": {"format": {"type": "text"}},
        "service_tier": "flex",
    },
    "/v1/messages": {
        "messages": TALK,
        "system": [{"type": "text", "text": "be"}],
        "max_tokens": 5,
        "stop_sequences": ["a"],
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
    },
    "/api/chat": {
        "messages": [{"role": "user", "content": "hi"}],
        "options": {"num_ctx": 99, "stop": ["a"], "seed": 1, "num_predict": 3, "num_gpu": 1},
        "keep_alive": "5m",
        "truncate": True,
    },
    "/api/generate": {"prompt": "hi", "context": [1, 2], "system": "be", "options": {}},
    "/completion": {
        "prompt": ["a", 5],
        "logit_bias": [[5, False], [6, 1.5]],
        "n_probs": 2,
        "stop": ["a"],
        "n_predict": 3,
    },
    "/infill": {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "x"}]},
    "/generate": {"inputs": "hi", "parameters": {"stop": ["a"], "top_n_tokens": 2, "seed": 1}},
    "/v2/models/{model}/infer": {"inputs": [TENSOR], "model": "m", "parameters": {"n": 1}},
    "/v2/models/{model}/generate": {"text_input": "hi", "model": "m", "parameters": {"top_k": 1}},
    "/invocations": {"inputs": "hi", "parameters": {"temperature": 0.5}},
    "/vertex": {"instances": [{"inputs": "hi"}], "parameters": {"temperature": 0.5}},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("path", BODIES)
def test_the_bodies_are_read(path: str, text: TextModel) -> None:
    asked = GENERATES[path].read(BODIES[path], strict=False)
    assert asked.dialect in DIALECTS
    assert GENERATES[path].request is None or msgspec.convert(
        {key: value for key, value in BODIES[path].items()}, GENERATES[path].request
    )


@pytest.mark.parametrize("path", BODIES)
@settings(max_examples=n_of(100, 300), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_changed_body_is_read_or_refused(path: str, seed: int, text: TextModel) -> None:
    chance = random.Random(seed)
    body = msgspec.json.decode(msgspec.json.encode(BODIES[path]))
    for _ in range(chance.randint(1, 3)):
        body = change_json(chance, body)
    if not isinstance(body, dict):
        return
    server = toy_server(text)
    try:
        asked = GENERATES[path].read(body, strict=False)
        found = asyncio.run(resolve_request(asked, server, "m", 0.0))
    except RequestError as error:
        assert 400 <= error.status < 500 and len(error.message) < 2000
        return
    assert msgspec.json.decode(msgspec.json.encode(found), type=Resolved) == found
