"""The dialects of llama-server, TGI, KServe, SageMaker and Vertex AI: what is read, and events in
bytes."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.serve.answer import Dialect
from kvasir.serve.dialects.completions import COMPLETIONS
from kvasir.serve.dialects.kserve import KSERVE_GENERATE, KSERVE_INFER, KSERVE_STREAM
from kvasir.serve.dialects.llama_server import LLAMA_COMPLETION, LLAMA_INFILL
from kvasir.serve.dialects.messages import MESSAGES
from kvasir.serve.dialects.ollama import OLLAMA_GENERATE
from kvasir.serve.dialects.responses import RESPONSES
from kvasir.serve.dialects.sagemaker import INVOCATIONS
from kvasir.serve.dialects.tgi import TGI, TGI_STREAM
from kvasir.serve.dialects.vertex import VERTEX
from kvasir.serve.pieces import FileMarker, Mixed, spelled
from kvasir.serve.streams import SILENCE_SECONDS, EngineDown
from kvasir.serve.text import TextModel
from kvasir.validation.seeds import choice_seed
from tests.fake_run import heard, joined, resolved_of, run_of, said, toy_text


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def told(text: TextModel, dialect: Dialect, body: dict[str, Any], *events: Any) -> list[bytes]:
    resolved = resolved_of(dialect, body, text)
    return asyncio.run(heard(run_of(resolved, text, events)))


def whole(text: TextModel, dialect: Dialect, body: dict[str, Any], *events: Any) -> Any:
    resolved = resolved_of(dialect, body, text)
    return json.loads(joined(asyncio.run(run_of(resolved, text, events).whole())))


def scored(token: int, finish: str | None = None) -> TokenEvent:
    found = TokenLogprob(token, -1.0, 0, ((token, -1.0), (90, -2.0)))
    return TokenEvent(0, tokens=(token,), logprobs=(found,), finish=finish)


def test_llama_server_streams(text: TextModel) -> None:
    body = {"prompt": "hi", "stream": True, "stop": ["c"]}
    found = told(text, LLAMA_COMPLETION, body, said(0, "ab", n_cached=1), said(0, "c"))
    assert found[0] == (
        b'data: {"content":"ab","tokens":[],"stop":false,"id_slot":-1,"tokens_predicted":2,'
        b'"tokens_evaluated":2}\n\n'
    )
    last = json.loads(found[1].removeprefix(b"data: "))
    assert (last["content"], last["stop"], last["stop_type"]) == ("", True, "word")
    assert (last["stopping_word"], last["tokens_cached"]) == ("c", 1)
    assert last["timings"]["predicted_n"] == 3 and last["timings"]["prompt_n"] == 1
    failed = told(text, LLAMA_COMPLETION, body, said(0, "a"), EngineDown("gone"))
    assert failed[-1] == (
        b'data: {"error":{"code":503,"message":"gone","type":"unavailable_error"}}\n\n'
    )


def test_llama_server_gives_tokens_and_probabilities(text: TextModel) -> None:
    body = {"prompt": [104, "i"], "n_probs": 2, "return_tokens": True, "n_predict": 2}
    answer = whole(text, LLAMA_COMPLETION, body, scored(65), scored(66, "length"))
    assert (answer["content"], answer["tokens"], answer["stop_type"]) == ("AB", [65, 66], "limit")
    assert answer["completion_probabilities"][1] == {
        "id": 66,
        "token": "B",
        "bytes": [66],
        "logprob": -1.0,
        "top_logprobs": [
            {"id": 66, "token": "B", "bytes": [66], "logprob": -1.0},
            {"id": 90, "token": "Z", "bytes": [90], "logprob": -2.0},
        ],
    }
    resolved = resolved_of(LLAMA_COMPLETION, {**body, "logit_bias": [[5, False], [6, 1]]}, text)
    assert resolved.job.prompts == ((104, 105),)
    assert resolved.job.params.logit_bias == {5: -100.0, 6: 1}
    assert (resolved.job.params.top_k, resolved.job.params.min_p) == (40, 0.05)
    with pytest.raises(RequestError) as caught:
        resolved_of(LLAMA_COMPLETION, {"prompt": "hi", "repeat_penalty": 0}, text)
    assert caught.value.param == "repeat_penalty"


class FillIn:
    """A tokenizer of characters with the markers of one family of models."""

    special_ids = frozenset({1, 2, 3})
    names = {"<fim_prefix>": 1, "<fim_suffix>": 2, "<fim_middle>": 3}  # noqa: RUF012

    def token_id(self, piece: str) -> int | None:
        return self.names.get(piece)

    def encode(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        assert not parse_special
        return [ord(char) for char in text]

    def surround(self, ids: list[int]) -> list[int]:
        return [0, *ids]


def test_infill_has_the_markers_of_the_model(text: TextModel) -> None:
    extra = [{"filename": "f", "text": "x"}]
    body = {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "input_extra": extra}
    (prompt,) = LLAMA_INFILL.read(body, strict=True).prompts
    assert isinstance(prompt, Mixed)
    tokenizer: Any = FillIn()
    before = [ord(char) for char in "\n\n--- snippet ---\n\nf\nx"]
    expected = (0, *before, 1, ord("a"), 2, ord("b"), 3, ord("c"))
    assert spelled(prompt, tokenizer, add_special=True) == expected
    assert (
        spelled(Mixed((FileMarker("prefix"), "<fim_suffix>")), tokenizer, add_special=False)[1]
        == 60
    )
    with pytest.raises(RequestError, match="no token for the prefix"):
        resolved_of(LLAMA_INFILL, body, text)


def test_a_suffix_has_the_markers_of_the_model(text: TextModel) -> None:
    body = {"prompt": "a", "suffix": "b"}
    (prompt,) = COMPLETIONS.read(body, strict=True).prompts
    tokenizer: Any = FillIn()
    assert isinstance(prompt, Mixed)
    assert spelled(prompt, tokenizer, add_special=False) == (1, ord("a"), 2, ord("b"), 3)
    for other in ({}, {"prompt": [1, 2]}, {"prompt": ["a", "b"]}, {"echo": True}):
        with pytest.raises(RequestError) as caught:
            resolved_of(COMPLETIONS, {**body, **other}, text)
        assert caught.value.param == "suffix"
    assert COMPLETIONS.read({"prompt": "a", "suffix": ""}, strict=True).prompts == ("a",)


def test_llama_server_orders_the_stages(text: TextModel) -> None:
    names = ["penalties", "top_k", "typ_p", "temperature"]
    body = {"prompt": "hi", "samplers": names, "typical_p": 0.5, "repeat_last_n": 8}
    (params,) = resolved_of(LLAMA_COMPLETION, body, text).job.resolved
    assert (params.samplers, params.typical_p, params.repeat_last_n) == (tuple(names), 0.5, 8)
    (params,) = resolved_of(LLAMA_COMPLETION, {"prompt": "hi"}, text).job.resolved
    assert (params.samplers, params.repeat_last_n) == ((), 64)
    with pytest.raises(RequestError, match="samplers has 'dry'"):
        resolved_of(LLAMA_COMPLETION, {"prompt": "hi", "samplers": ["dry"]}, text)


def test_llama_server_says_how_much_is_drafted(text: TextModel) -> None:
    """The engine here drafts nothing, and says so to who wants it."""
    for more, expected, is_warned in (
        ({}, -1, False),
        ({"speculative.n_max": 3}, 3, True),
        ({"speculative": {"n_max": 0}}, 0, False),
        ({"speculative": {"num_speculative_tokens": 2}}, 2, True),
        ({"speculative": False}, 0, False),
    ):
        resolved = resolved_of(LLAMA_COMPLETION, {"prompt": "hi", **more}, text)
        assert resolved.job.resolved[0].max_drafts == expected
        assert bool(resolved.warnings) == is_warned
    for bad in ({"speculative.n_max": -1}, {"speculative": {"n_max": -1}}):
        with pytest.raises(RequestError, match=r"speculative.n_max must be an integer from 0"):
            resolved_of(LLAMA_COMPLETION, {"prompt": "hi", **bad}, text)
    for both in (
        {"speculative.n_max": 1, "speculative": False},
        {"speculative": {"n_max": 1, "num_speculative_tokens": 1}},
    ):
        with pytest.raises(RequestError, match="say the same: send one of them"):
            resolved_of(LLAMA_COMPLETION, {"prompt": "hi", **both}, text)


def test_every_dialect_says_how_much_is_drafted(text: TextModel) -> None:
    asked = {"num_speculative_tokens": 3}
    for dialect, body in (
        (COMPLETIONS, {"prompt": "hi", "speculative": asked}),
        (
            MESSAGES,
            {
                "messages": [{"role": "user", "content": "hi"}],
                "max_tokens": 4,
                "speculative": asked,
            },
        ),
        (RESPONSES, {"input": "hi", "speculative": asked}),
        (OLLAMA_GENERATE, {"prompt": "hi", "speculative": asked}),
        (TGI, {"inputs": "hi", "parameters": {"speculative": asked}}),
    ):
        assert dialect.read(body, strict=True).params.speculative == asked
    with pytest.raises(RequestError) as caught:
        body = {"inputs": "hi", "parameters": {"speculative": {"num_speculative_tokens": -1}}}
        resolved_of(TGI, body, text)
    assert caught.value.param == "parameters.speculative.num_speculative_tokens"


def test_tgi_truncates_from_the_left(text: TextModel) -> None:
    job = resolved_of(TGI, {"inputs": "abc", "parameters": {"truncate": 2, "typical_p": 0.9}}, text)
    assert job.job.prompts == ((98, 99),) and job.job.resolved[0].typical_p == 0.9
    for name in ("truncate", "typical_p"):
        with pytest.raises(RequestError) as caught:
            resolved_of(TGI, {"inputs": "abc", "parameters": {name: 0}}, text)
        assert caught.value.param == f"parameters.{name}"


def test_tgi_streams_an_event_for_each_token(text: TextModel) -> None:
    body = {"inputs": "hi", "parameters": {"max_new_tokens": 2, "return_full_text": True}}
    found = told(text, TGI_STREAM, body, scored(65), scored(66, "length"))
    assert found[0] == (
        b'data:{"index":1,"token":{"id":65,"text":"A","logprob":-1.0,"special":false},'
        b'"top_tokens":[{"id":65,"text":"A","logprob":-1.0,"special":false},'
        b'{"id":90,"text":"Z","logprob":-2.0,"special":false}],"generated_text":null,'
        b'"details":null}\n\n'
    )
    last = json.loads(found[1].removeprefix(b"data:"))
    assert last["generated_text"] == "hiAB"
    assert last["details"] == {
        "finish_reason": "length",
        "generated_tokens": 2,
        "input_length": 2,
        "seed": resolved_of(TGI, body, text).job.resolved[0].seed,
    }
    failed = told(text, TGI_STREAM, body, scored(65), EngineDown("gone"))
    assert failed[-1] == b'data:{"error":"gone","error_type":"generation"}\n\n'


def test_tgi_is_greedy_unless_asked(text: TextModel) -> None:
    for parameters, temperature in (({}, 0), ({"do_sample": True}, 1), ({"temperature": 0.5}, 0.5)):
        asked = TGI.read({"inputs": "hi", "parameters": parameters}, strict=True)
        assert asked.params.temperature == temperature
    answer = whole(text, TGI, {"inputs": "hi", "parameters": {"details": True}}, scored(65, "stop"))
    assert answer["generated_text"] == "A"
    assert answer["details"]["finish_reason"] == "eos_token"
    assert [token["text"] for token in answer["details"]["tokens"]] == ["A"]
    for name, value in (("max_new_tokens", 5000), ("temperature", -1), ("watermark", True)):
        with pytest.raises(RequestError) as caught:
            resolved_of(TGI, {"inputs": "hi", "parameters": {name: value}}, text)
        assert caught.value.param == f"parameters.{name}"


def test_kserve_has_a_row_for_each_text(text: TextModel) -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [2], "data": ["a", "b"]}
    body = {"model": "toy", "inputs": [tensor], "id": "7", "parameters": {"max_tokens": 3}}
    assert whole(text, KSERVE_INFER, body, said(0, "x", "stop"), said(1, "y", "stop")) == {
        "model_name": "toy",
        "model_version": "1",
        "id": "7",
        "outputs": [{"name": "text_output", "datatype": "BYTES", "shape": [2], "data": ["x", "y"]}],
    }
    wrong = (
        {**tensor, "shape": [3]},
        {**tensor, "datatype": "FP32"},
        {**tensor, "name": "x"},
        {**tensor, "data": [1, 2]},
    )
    for each in wrong:
        with pytest.raises(RequestError) as caught:
            KSERVE_INFER.read({**body, "inputs": [each]}, strict=True)
        assert caught.value.param == "inputs"


def test_kserve_tells_no_binary_tensors() -> None:
    tensor = {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": ["a"]}
    body = {"model": "toy", "inputs": [tensor]}
    for parameters in ({}, {"binary_data": False}):
        asked = {**body, "outputs": [{"name": "text_output", "parameters": parameters}]}
        assert KSERVE_INFER.read(asked, strict=True).prompts == ("a",)
    for wrong in ({"name": "x"}, {"name": "text_output", "parameters": {"binary_data": True}}):
        with pytest.raises(RequestError) as caught:
            KSERVE_INFER.read({**body, "outputs": [wrong]}, strict=True)
        assert caught.value.param == "outputs"


def test_who_wants_no_cache_has_a_salt_that_nobody_else_has() -> None:
    body = {"prompt": "a"}
    plain, apart, again = (
        LLAMA_COMPLETION.read({**body, **more}, strict=True).salt
        for more in ({"cache_prompt": True}, {"cache_prompt": False}, {"cache_prompt": False})
    )
    assert plain == "" and len({plain, apart, again}) == 3


def test_a_stop_that_is_not_trimmed_by_either_name() -> None:
    read = COMPLETIONS.read
    body = {"model": "m", "prompt": "a", "stop": "b"}
    assert not read(body, strict=True).params.include_stop_str_in_output
    for name in ("no_stop_trim", "include_stop_str_in_output"):
        assert read({**body, name: True}, strict=True).params.include_stop_str_in_output


def test_kserve_generates(text: TextModel) -> None:
    body = {"model": "toy", "text_input": "hi", "parameters": {"temperature": 0}}
    answer = whole(text, KSERVE_GENERATE, body, said(0, "ab", "length"))
    assert (answer["text_output"], answer["finish_reason"]) == ("ab", "length")
    found = told(text, KSERVE_STREAM, body, said(0, "a"), said(0, "b", "stop"))
    assert found[:2] == [
        b'data: {"model_name":"toy","model_version":"1","text_output":"%b"}\n\n' % said
        for said in (b"a", b"b")
    ]
    assert json.loads(found[2].removeprefix(b"data: "))["completion_tokens"] == 2
    assert told(text, KSERVE_STREAM, body, said(0, "a"), EngineDown("gone"))[-1] == (
        b'data: {"error":"gone"}\n\n'
    )
    with pytest.raises(RequestError) as caught:
        KSERVE_GENERATE.read({**body, "parameters": {"n": 2}}, strict=True)
    assert caught.value.param == "parameters.n"


def test_invocations_are_what_their_bodies_are() -> None:
    bodies: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": "hi"}]},
        "completions": {"prompt": "hi"},
        "tgi": {"inputs": "hi"},
    }
    for name, body in bodies.items():
        assert INVOCATIONS.read(body, strict=True).dialect == name
    for body in ({}, {"prompt": "a", "inputs": "b"}):
        with pytest.raises(RequestError, match="send one of messages, prompt, inputs"):
            INVOCATIONS.read(body, strict=True)


def test_vertex_predicts(text: TextModel) -> None:
    body = {"instances": [{"inputs": "hi"}, {"inputs": "ho"}], "parameters": {"max_new_tokens": 2}}
    events = (said(1, "cd", "length"), said(0, "ab", "length"))
    assert whole(text, VERTEX, body, *events) == {"predictions": ["ab", "cd"]}
    asked = VERTEX.read(body, strict=True)
    assert (asked.prompts, asked.params.max_tokens) == (("hi", "ho"), 2)
    more = {"instances": [{"inputs": "hi", "parameters": {"temperature": 0.5}}]}
    assert VERTEX.read(more, strict=True).params.temperature == 0.5


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "instances"),
        ({"instances": []}, "instances"),
        ({"instances": [{"inputs": 5}]}, "instances[0].inputs"),
        ({"instances": [{"inputs": "a", "odd": 1}]}, "instances[0].odd"),
        ({"instances": [{"messages": []}]}, "instances[0].messages"),
        ({"instances": [{"inputs": "a"}], "parameters": {"details": True}}, "parameters.details"),
        (
            {"instances": [{"inputs": "a", "parameters": {"watermark": True}}]},
            "parameters.watermark",
        ),
        (
            {"instances": [{"inputs": "a"}, {"inputs": "b", "parameters": {"seed": 1}}]},
            "instances",
        ),
    ],
)
def test_what_vertex_refuses(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        VERTEX.read(body, strict=True)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_tgi_tells_the_likeliest_of_several(text: TextModel) -> None:
    parameters = {"best_of": 3, "details": True, "do_sample": True, "seed": 7}
    body = {"inputs": "hi", "parameters": parameters}
    events = [
        TokenEvent(i, tokens=(65 + i,), logprobs=(TokenLogprob(65 + i, value),), finish="length")
        for i, value in enumerate((-3.0, -1.0, -2.0))
    ]
    answer = whole(text, TGI, body, *events)
    details = answer["details"]
    assert (answer["generated_text"], [x["id"] for x in details["tokens"]]) == ("B", [66])
    assert (details["generated_tokens"], details["seed"]) == (1, choice_seed(7, 1))
    with pytest.raises(RequestError) as caught:
        TGI_STREAM.read(body, strict=True)
    assert caught.value.param == "parameters.best_of"


def test_a_name_of_sglang(text: TextModel) -> None:
    body = {"model": "m", "prompt": "a"}
    notes = COMPLETIONS.read({**body, "rid": "mine"}, strict=True).show["notes"]
    assert notes == {"request_id": "mine"}
    assert COMPLETIONS.read({**body, "rid": "a", "request_id": "a"}, strict=True)
    for wrong in ({"rid": "a", "request_id": "b"}, {"rid": ["a"]}, {"rid": ""}):
        with pytest.raises(RequestError):
            COMPLETIONS.read({**body, **wrong}, strict=True)


@pytest.mark.parametrize(
    ("interval", "silence"), [(None, SILENCE_SECONDS), (3, 3), (3600, 3600), (-1, math.inf)]
)
def test_how_long_a_stream_is_silent(text: TextModel, interval: int | None, silence: float) -> None:
    for dialect, body in (
        (COMPLETIONS, {"model": "m", "prompt": "a"}),
        (LLAMA_COMPLETION, {"prompt": "a"}),
    ):
        asked = {**body, "stream": True, "sse_ping_interval": interval}
        assert resolved_of(dialect, asked, text).silence == silence


@pytest.mark.parametrize("interval", [0, -2, 3601, 1.5])
def test_bad_intervals(interval: float) -> None:
    with pytest.raises(RequestError) as caught:
        LLAMA_COMPLETION.read({"prompt": "a", "sse_ping_interval": interval}, strict=True)
    assert caught.value.param == "sse_ping_interval"
