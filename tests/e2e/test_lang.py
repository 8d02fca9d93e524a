"""Programs over HTTP say what they say in a process of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvasir.lang as sgl
from kvasir import LLM, SamplingParams
from kvasir.core.errors import ConfigError, RequestError
from kvasir.lang.http import ServerError
from tests.e2e.harness import MODEL, Server
from tests.lang_programs import everything

WORDS = "What now? <|im_end|> Ünïcode"


@pytest.fixture(scope="module")
def llm(toy_folder: Path) -> Iterator[LLM]:
    with LLM(str(toy_folder), threads=1, max_model_len=2048, kv_memory="64MiB") as made:
        yield made


@sgl.function
def text_program(s: sgl.ProgramState, begin: str) -> None:
    s += begin + sgl.gen("x", max_tokens=10, stop="e") + " then " + sgl.gen("y", max_tokens=5)
    s += sgl.select("c", ["a", "bb"], sgl.unconditional_likelihood_normalized)


def told(state: sgl.ProgramState, *names: str) -> list[Any]:
    answers = [state.answer(name) for name in names]
    return [(x.text, x.token_ids, x.finish_reason, x.stop_reason, x.scores) for x in answers]


def test_a_server_and_an_llm_give_the_same_bytes(native_toy: Server, llm: LLM) -> None:
    server = sgl.KvasirServer(native_toy.url)
    names = ("first", "number", "choice", "other", "third", "last")
    here, there = (everything.run(WORDS, backend=x, seed=11) for x in (llm, server))
    assert there.text() == here.text()
    assert told(there, *names) == told(here, *names)
    here, there = (text_program.run("begin", backend=x, seed=12) for x in (llm, server))
    assert there.text() == here.text()
    assert told(there, "x", "y", "c") == told(here, "x", "y", "c")


def test_a_batch_over_http_is_each_alone(native_toy: Server, llm: LLM) -> None:
    arguments = [{"words": f"{WORDS} {i}"} for i in range(4)]
    server = sgl.KvasirServer(native_toy.url + "/v1", MODEL)
    batch = everything.run_batch(arguments, backend=server, seed=3)
    alone = [everything.run(**given, backend=llm, seed=3 + i) for i, given in enumerate(arguments)]
    assert [state.text() for state in batch] == [state.text() for state in alone]


def test_a_stream_over_http(native_toy: Server) -> None:
    server = sgl.KvasirServer(native_toy.url)
    stream = text_program.stream("begin", backend=server, seed=12)
    texts: dict[str, str] = {}
    for name, text in stream:
        texts[name] = texts.get(name, "") + text
    assert stream.result.text() == text_program.run("begin", backend=server, seed=12).text()
    assert texts == {name: stream.result[name] for name in "xyc"}


def test_a_prefix_is_found_over_http(native_toy: Server) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "z" * 200
        s += sgl.gen("a", max_tokens=2, ignore_eos=True)
        for fork in s.fork(3):
            fork += "!" + sgl.gen("x", max_tokens=2)

    trace = sgl.Trace()
    program.run(backend=sgl.KvasirServer(native_toy.url), trace=trace)
    first, *branches = trace.records
    assert first.counts.n_prompt == 200 and len(branches) == 3
    assert all(record.n_computed <= 16 for record in branches)


def test_choices_are_scored_behind_one_prefix_over_http(native_toy: Server) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "w" * 300
        s += sgl.select("c", ["a", "bb", "ccc", "dddd"])

    trace = sgl.Trace()
    program.run(backend=sgl.KvasirServer(native_toy.url), trace=trace)
    (record,) = trace.records
    assert record.counts.n_prompt == 4 * 300 + 10
    assert record.n_computed <= 300 + 10 + 3 * 16


def test_a_timeout_ends_a_request_of_the_server(native_toy: Server) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> str:
        s += "begin" + sgl.gen("x", max_tokens=3900, ignore_eos=True)
        return s["x"]

    with pytest.raises(sgl.ProgramTimeout):
        program.run(backend=sgl.KvasirServer(native_toy.url), timeout=0.2)
    native_toy.wait_idle()


def test_what_a_server_refuses_is_said_in_its_words(native_toy: Server) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "begin" + sgl.gen("x", temperature=-1)

    with pytest.raises(RequestError, match="answered 400: temperature must be"):
        program.run(backend=sgl.KvasirServer(native_toy.url))
    with pytest.raises(ServerError, match="no answer from"):
        sgl.KvasirServer("http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="no address of a server"):
        sgl.KvasirServer("ftp://example.com")


def test_any_server_of_openais_api(native_toy: Server) -> None:
    server = sgl.OpenAIServer(native_toy.url)

    @sgl.function
    def text(s: sgl.ProgramState) -> None:
        s += "begin" + sgl.gen("x", max_tokens=6) + " then" + sgl.gen("y", max_tokens=6)

    @sgl.function
    def chat(s: sgl.ProgramState) -> None:
        s += sgl.system("Be good.") + sgl.user("a") + sgl.assistant(sgl.gen("x", max_tokens=6))
        s += sgl.user("b") + sgl.assistant(sgl.gen("y", max_tokens=6))

    greedy = SamplingParams(temperature=0.0, max_tokens=6)
    own = sgl.KvasirServer(native_toy.url)
    for program in (text, chat):
        here = program.run(backend=server, sampling_params=greedy)
        there = program.run(backend=own, sampling_params=greedy)
        assert here["x"] == there["x"] and here.answer("x").counts.n_output == 6
    stream = text.stream(backend=server, sampling_params=greedy)
    told_texts = "".join(piece for _, piece in stream)
    assert told_texts == stream.result["x"] + stream.result["y"]


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: sgl.select("c", ["a"]), "select"),
        (lambda: sgl.gen("x", regex="a"), "regex"),
        (lambda: sgl.gen("x", json_schema=True), "json_schema outside turns"),
        (lambda: sgl.gen("x", top_k=2, min_p=0.5), "min_p, top_k"),
        (lambda: sgl.gen("x", ignore_eos=True), "ignore_eos"),
    ],
)
def test_what_openais_api_lacks_is_refused_by_name(
    native_toy: Server, call: Any, name: str
) -> None:
    @sgl.function
    def program(s: sgl.ProgramState) -> None:
        s += "begin" + call()

    with pytest.raises(RequestError, match=f"cannot do {name}"):
        program.run(backend=sgl.OpenAIServer(native_toy.url))


def test_pieces_are_tokenized_as_one_text(native_toy: Server) -> None:
    def ids(**body: Any) -> Any:
        return native_toy.post("/tokenize", body).json()

    special = ids(pieces=[{"text": "<|im_end|>"}, {"text": "a"}])["tokens"]
    assert special == [251, 97]
    words = ids(pieces=[{"text": "<|im_end|>", "special": False}, {"text": "<|im_end|>"}])
    assert len(words["tokens"]) == 11 and words["tokens"][-1] == 251
    assert ids(pieces=[], continues=True)["tokens"] == []
    refused = ids(pieces=[], prompt="a")
    assert refused["error"]["message"] == "send one of prompt, content, messages and pieces"


def test_a_template_without_the_begin_of_an_answer(native_toy: Server) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": False}
    answer = native_toy.post("/apply-template", body).json()
    assert answer["prompt"] == "<|im_start|>user\na<|im_end|>\n"
