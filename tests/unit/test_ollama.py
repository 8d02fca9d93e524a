"""Ollama's dialect: what is read, and the lines in their bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.serve.dialects.ollama import OLLAMA_CHAT, OLLAMA_GENERATE, read_chat, read_generate
from kvasir.serve.pieces import between
from kvasir.serve.streams import EngineDown
from kvasir.serve.text import TextModel
from tests.fake_run import heard, joined, resolved_of, run_of, said, toy_text

TALK = [{"role": "user", "content": "hi"}]
HEAD = b'{"model":"toy","created_at":"2023-11-14T22:13:20Z",'


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def told(text: TextModel, dialect: Any, body: dict[str, Any], *events: Any) -> list[bytes]:
    resolved = resolved_of(dialect, body, text)
    return asyncio.run(heard(run_of(resolved, text, events)))


def test_streams_in_their_bytes(text: TextModel) -> None:
    found = told(text, OLLAMA_CHAT, {"messages": TALK}, said(0, 'é"'), said(0, "b", "stop"))
    assert found[:2] == [
        HEAD + b'"message":{"role":"assistant","content":"\xc3\xa9\\""},"done":false}\n',
        HEAD + b'"message":{"role":"assistant","content":"b"},"done":false}\n',
    ]
    last = json.loads(found[2])
    assert last["message"] == {"role": "assistant", "content": ""}
    assert (last["done"], last["done_reason"]) == (True, "stop")
    assert (last["prompt_eval_count"], last["eval_count"], last["load_duration"]) == (21, 4, 0)
    times = [last[f"{kind}_duration"] for kind in ("total", "prompt_eval", "eval")]
    assert all(isinstance(time, int) and time > 0 for time in times)
    assert abs(times[0] - times[1] - times[2]) <= 1
    found = told(text, OLLAMA_GENERATE, {"prompt": "hi"}, said(0, "a", "length"))
    assert found[0] == HEAD + b'"response":"a","done":false}\n'
    assert json.loads(found[1])["done_reason"] == "length"


def test_a_failure_is_a_line(text: TextModel) -> None:
    found = told(text, OLLAMA_CHAT, {"messages": TALK}, said(0, "a"), EngineDown("gone"))
    assert found[-1] == b'{"error":"gone"}\n'
    assert (
        run_of(resolved_of(OLLAMA_CHAT, {"messages": TALK}, text), text, []).grammar.silence == b""
    )


def test_a_context_is_gone_on_with(text: TextModel) -> None:
    asked = resolved_of(OLLAMA_GENERATE, {"prompt": "hi", "stream": False}, text)
    answer = json.loads(joined(asyncio.run(run_of(asked, text, [said(0, "ab", "stop")]).whole())))
    assert answer["response"] == "ab"
    assert answer["context"] == [*asked.job.prompts[0], *b"ab"]
    more = resolved_of(OLLAMA_GENERATE, {"prompt": "and", "context": answer["context"]}, text)
    alone = resolved_of(OLLAMA_GENERATE, {"prompt": "and"}, text)
    assert more.job.prompts[0] == (*answer["context"], *alone.job.prompts[0])
    raw = resolved_of(OLLAMA_GENERATE, {"prompt": "and", "raw": True}, text)
    assert raw.job.prompts == (tuple(b"and"),)


def test_options_have_their_names(text: TextModel) -> None:
    options = {"num_predict": 7, "repeat_penalty": 1.1, "seed": -1, "stop": "x", "num_gpu": 1}
    asked = read_chat({"model": "m:latest", "messages": TALK, "options": options}, strict=False)
    assert (asked.model, asked.stream) == ("m", True)
    params = asked.params
    assert (params.temperature, params.top_k, params.top_p) == (0.8, 40, 0.9)
    assert (params.max_tokens, params.repetition_penalty, params.seed) == (7, 1.1, None)
    assert asked.warnings == ("options.num_gpu was ignored",)
    for name, value in (("num_predict", 5000), ("num_ctx", 5000), ("temperature", -1)):
        with pytest.raises(RequestError) as caught:
            resolved_of(OLLAMA_CHAT, {"messages": TALK, "options": {name: value}}, text)
        assert caught.value.param == f"options.{name}"


def test_old_turns_are_left_out_only_where_that_is_wanted(text: TextModel) -> None:
    turns = [{"role": "user", "content": str(i) * 100} for i in range(9)]
    system = {"role": "system", "content": "be brief"}
    body = {"messages": [system, *turns], "options": {"num_ctx": 400}}
    with pytest.raises(RequestError, match="the context holds 400"):
        resolved_of(OLLAMA_CHAT, body, text)
    kept = resolved_of(OLLAMA_CHAT, {**body, "truncate": True}, text).job.prompts[0]
    shown = bytes(kept)
    assert b"be brief" in shown and b"8" * 100 in shown and b"6" * 100 in shown
    assert b"5" * 100 not in shown and len(kept) < 400
    with pytest.raises(RequestError, match="the context holds"):
        resolved_of(
            OLLAMA_CHAT, {"messages": turns[:1], "truncate": True, "options": {"num_ctx": 50}}, text
        )


def test_a_prompt_loses_its_beginning_only_where_that_is_wanted(text: TextModel) -> None:
    options = {"num_ctx": 50, "num_predict": 10}
    body = {"prompt": "ab" * 100, "raw": True, "options": options}
    with pytest.raises(RequestError, match="the context holds 50"):
        resolved_of(OLLAMA_GENERATE, body, text)
    job = resolved_of(OLLAMA_GENERATE, {**body, "truncate": True}, text).job
    assert job.prompts == (tuple(b"ab" * 20),) and job.resolved[0].max_tokens == 10
    endless = {**body, "truncate": True, "options": {"num_ctx": 50}}
    assert len(resolved_of(OLLAMA_GENERATE, endless, text).job.prompts[0]) == 49
    more = {"prompt": "and", "context": [65] * 60, "truncate": True, "options": options}
    whole = resolved_of(OLLAMA_GENERATE, {"prompt": "and"}, text).job.prompts[0]
    assert resolved_of(OLLAMA_GENERATE, more, text).job.prompts[0][-len(whole) :] == whole


def test_a_suffix_is_what_comes_after() -> None:
    asked = read_generate({"prompt": "a", "suffix": "b"}, strict=True)
    assert asked.prompts == (between("a", "b"),) and not asked.messages


def scored(token: int, finish: str | None = None) -> TokenEvent:
    found = TokenLogprob(token, -1.0, 0, ((token, -1.0), (90, -2.0)))
    return TokenEvent(0, tokens=(token,), logprobs=(found,), finish=finish)


def test_log_probabilities_stand_beside_their_text(text: TextModel) -> None:
    body = {"messages": TALK, "logprobs": True, "top_logprobs": 2}
    entry = {"token": "A", "logprob": -1.0, "bytes": [65]}
    other = {"token": "Z", "logprob": -2.0, "bytes": [90]}
    wanted = [{**entry, "top_logprobs": [entry, other]}]
    found = told(text, OLLAMA_CHAT, body, scored(65), said(0, "", "stop"))
    first, last = map(json.loads, found)
    assert (first["message"]["content"], first["logprobs"]) == ("A", wanted)
    assert last["done"] and "logprobs" not in last
    resolved = resolved_of(OLLAMA_CHAT, {**body, "stream": False}, text)
    answer = joined(asyncio.run(run_of(resolved, text, [scored(65, "stop")]).whole()))
    assert json.loads(answer)["logprobs"] == wanted
    with pytest.raises(RequestError) as caught:
        resolved_of(OLLAMA_CHAT, {**body, "top_logprobs": 200}, text)
    assert caught.value.param == "top_logprobs"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"format": "xml"}, "format"),
        ({"tools": [{}]}, "tools[0]"),
        ({"think": "hard"}, "think"),
        ({"shift": True}, "shift"),
        ({"keep_alive": 0}, "keep_alive"),
        ({"keep_alive": "soon"}, "keep_alive"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"seed": "x"}}, "options.seed"),
        ({"messages": [{"role": "user", "content": "x", "images": [1]}]}, "messages[0].images"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_chat({"model": "m", "messages": TALK, **body}, strict=False)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize("kept", ["5m", "1h30m", -1, 300, "10s", 2.0])
def test_models_are_kept_for_longer_than_asked(kept: object) -> None:
    assert read_chat({"messages": TALK, "keep_alive": kept}, strict=True).warnings == ()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"suffix": "b", "system": "s"}, "suffix"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"template": "t"}, "template"),
        ({"raw": True, "context": [1]}, "raw"),
    ],
)
def test_of_generate_too(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_generate({"model": "m", "prompt": "a", **body}, strict=False)
    assert caught.value.param == param
