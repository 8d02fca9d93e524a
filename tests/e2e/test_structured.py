"""Answers whose form is asked for, in every field that asks for it."""

from __future__ import annotations

import json
import re
from typing import Any

import openai
import pytest

from tests.e2e.canaries import watching
from tests.e2e.harness import MODEL, Server
from tests.schema_bombs import BOMBS

CHAT = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "ab", "schema": SCHEMA}}
AS_SCHEMA: dict[str, dict[str, Any]] = {
    "OpenAI": {"response_format": FORMAT},
    "vLLM": {"structured_outputs": {"json": SCHEMA}},
    "vLLM, as text": {"structured_outputs": {"json": json.dumps(SCHEMA)}},
    "older vLLM": {"guided_json": SCHEMA},
    "SGLang": {"json_schema": json.dumps(SCHEMA)},
    "llama.cpp": {"json_schema": SCHEMA},
}
TAG = {
    "type": "tag",
    "begin": "<t>",
    "content": {"type": "regex", "pattern": "[ab]"},
    "end": "</t>",
}
OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "[a-c]{2}[0-9]"}, r"[a-c]{2}[0-9]"),
    "guided regex": ({"guided_regex": "[a-c]{2}"}, r"[a-c]{2}"),
    "choice": ({"guided_choice": ["yes", "no"]}, r"yes|no"),
    "GBNF": ({"grammar": 'root ::= "a" [0-9]{2}'}, r"a[0-9]{2}"),
    "Lark": ({"ebnf": 'start: "a" /[0-9]{2}/'}, r"a[0-9]{2}"),
    "structural tag": (
        {"response_format": {"type": "structural_tag", "format": TAG}},
        "<t>[ab]</t>",
    ),
    "whole": ({"structured_outputs": {"choice": ["yes"]}}, r"yes"),
}


def ask(server: Server, fields: dict[str, Any]) -> Any:
    return server.post(CHAT, {"messages": MESSAGES, "max_tokens": 60, "seed": 2, **fields})


def said(server: Server, fields: dict[str, Any]) -> str:
    answer = ask(server, fields)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop"
    return str(choice["message"]["content"])


def test_the_timeline_has_what_it_waited_for_the_compiler(toy: Server) -> None:
    first = ask(toy, {"regex": "[a-c]{3}[0-9]{3}"}).json()["id"]
    told = toy.get(f"/v1/requests/{first}/timeline").json()
    assert told["compile_seconds"] > 0
    free = ask(toy, {}).json()["id"]
    assert "compile_seconds" not in toy.get(f"/v1/requests/{free}/timeline").json()


def test_what_the_library_lacks_is_refused_by_name(toy: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}
    answer = ask(toy, {"guided_json": schema})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "unsupported_schema")
    assert "'pattern' at #/properties/a/pattern is not supported" in error["message"]


@pytest.mark.parametrize("field", AS_SCHEMA)
def test_one_schema_in_all_fields(toy: Server, field: str) -> None:
    text = said(toy, AS_SCHEMA[field])
    value = json.loads(text)
    assert list(value) == ["a", "b"] and value["a"] <= 99 and value["b"] in ("x", "yy")
    assert text == said(toy, AS_SCHEMA["OpenAI"])


@pytest.mark.parametrize("kind", OTHERS)
def test_other_kinds(toy: Server, kind: str) -> None:
    fields, pattern = OTHERS[kind]
    assert re.fullmatch(pattern, said(toy, fields))


@pytest.mark.parametrize("late", [{"min_tokens": 50}, {"ignore_eos": True}])
def test_a_structure_ends_where_it_ends(toy: Server, late: dict[str, Any]) -> None:
    for fields, pattern in OTHERS.values():
        answer = ask(toy, {**fields, **late}).json()
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["message"]["content"])
        said = "where the structure of an answer ends, it ends, before min_tokens and ignore_eos"
        assert answer["warnings"] == [said]


def test_an_end_inside_json(toy: Server) -> None:
    (choice,) = ask(toy, {"response_format": FORMAT, "max_tokens": 3}).json()["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].lstrip().startswith("{")


def test_an_echo_is_no_part_of_the_structure(toy: Server) -> None:
    """It stands before it, and the structure begins with the first token of the answer."""
    begun = [*MESSAGES, {"role": "assistant", "content": "So: "}]
    goes_on = {"add_generation_prompt": False, "continue_final_message": True, "echo": True}
    chat = {"messages": begun, "max_tokens": 300, "response_format": FORMAT, **goes_on}
    found = said(toy, chat)
    assert found.startswith("So: ") and list(json.loads(found[4:])) == ["a", "b"]
    asked = {"prompt": "x {", "max_tokens": 300, "seed": 2, "echo": True, "response_format": FORMAT}
    (choice,) = toy.post("/v1/completions", asked).json()["choices"]
    assert choice["text"].startswith("x {")
    assert list(json.loads(choice["text"][3:])) == ["a", "b"]
    lines = toy.post("/v1/completions", {**asked, "stream": True}).text.splitlines()
    told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(one["choices"][0]["text"] for one in told if one["choices"]) == choice["text"]
    scored = toy.post("/v1/completions", {**asked, "logprobs": 0}).json()["choices"][0]
    assert "".join(scored["logprobs"]["tokens"]).startswith(scored["text"])


TGI_NAMED = {"type": "json_schema", "value": {"name": "ab", "schema": SCHEMA}}
SHORT = {"max_tokens": 300, "seed": 2}
DIALECTS: dict[str, tuple[str, dict[str, Any], Any]] = {
    "llama-server": (
        "/completion",
        {"prompt": "x", "n_predict": 300, "json_schema": SCHEMA},
        lambda answer: answer["content"],
    ),
    "llama-server's chat": (
        CHAT,
        {
            "messages": MESSAGES,
            **SHORT,
            "response_format": {"type": "json_object", "schema": SCHEMA},
        },
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    "TGI": (
        "/generate",
        {
            "inputs": "x",
            "parameters": {"max_new_tokens": 300, "grammar": {"type": "json", "value": SCHEMA}},
        },
        lambda answer: answer["generated_text"],
    ),
    "TGI, named": (
        "/generate",
        {"inputs": "x", "parameters": {"max_new_tokens": 300, "grammar": TGI_NAMED}},
        lambda answer: answer["generated_text"],
    ),
    "TGI's chat": (
        CHAT,
        {"messages": MESSAGES, **SHORT, "response_format": {"type": "json", "value": SCHEMA}},
        lambda answer: answer["choices"][0]["message"]["content"],
    ),
    "KServe": (
        f"/v2/models/{MODEL}/generate",
        {"text_input": "x", "parameters": {**SHORT, "guided_json": SCHEMA}},
        lambda answer: answer["text_output"],
    ),
    "SageMaker": (
        "/invocations",
        {"prompt": "x", **SHORT, "response_format": FORMAT},
        lambda answer: answer["choices"][0]["text"],
    ),
    "Responses": (
        "/v1/responses",
        {
            "input": "x",
            "max_output_tokens": 300,
            "text": {"format": {"type": "json_schema", "name": "ab", "schema": SCHEMA}},
        },
        lambda answer: answer["output"][0]["content"][0]["text"],
    ),
    "Messages": (
        "/v1/messages",
        {
            "messages": MESSAGES,
            **SHORT,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
        lambda answer: answer["content"][0]["text"],
    ),
    "Messages, before": (
        "/v1/messages",
        {"messages": MESSAGES, **SHORT, "output_format": {"type": "json_schema", "schema": SCHEMA}},
        lambda answer: answer["content"][0]["text"],
    ),
    "Ollama": (
        "/api/chat",
        {"messages": MESSAGES, "stream": False, "format": SCHEMA, "options": {"num_predict": 300}},
        lambda answer: answer["message"]["content"],
    ),
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_schema_in_every_dialect(toy: Server, dialect: str) -> None:
    path, body, text_of = DIALECTS[dialect]
    answer = toy.post(path, {"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    value = json.loads(text_of(answer.json()))
    assert list(value) == ["a", "b"] and value["a"] <= 99 and value["b"] in ("x", "yy")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/completion", {"prompt": "x", "grammar": "a", "json_schema": {}}, "json_schema"),
        (
            "/generate",
            {"inputs": "x", "parameters": {"grammar": {"type": "xml", "value": "a"}}},
            "parameters.grammar",
        ),
        (
            "/v1/responses",
            {"input": "x", "regex": "a", "text": {"format": {"type": "json_object"}}},
            "text.format",
        ),
        ("/v1/responses", {"input": "x", "text": {"format": {"type": "x"}}}, "text.format.type"),
        (
            "/v1/responses",
            {"input": "x", "text": {"format": {"type": "json_schema", "name": "a"}}},
            "text.format",
        ),
        (
            "/v1/messages",
            {
                "messages": MESSAGES,
                "max_tokens": 9,
                "guided_regex": "a",
                "output_format": {"type": "json_schema", "schema": {}},
            },
            "output_format",
        ),
        (
            "/v1/messages",
            {
                "messages": MESSAGES,
                "max_tokens": 9,
                "output_config": {"format": {"type": "json_schema", "schema": {}}},
                "output_format": {"type": "json_schema", "schema": {}},
            },
            "output_format",
        ),
    ],
)
def test_refusals_of_dialects(toy: Server, path: str, body: dict[str, Any], param: str) -> None:
    answer = toy.post(path, {"model": MODEL, **body})
    assert answer.status_code == 400, answer.text
    assert param in answer.text


def test_completions_stream_and_the_client(toy: Server) -> None:
    with openai.OpenAI(base_url=toy.url + "/v1", api_key="none", max_retries=0) as client:
        asked: dict[str, Any] = {"model": MODEL, "prompt": "x", "max_tokens": 60, "seed": 3}
        asked["extra_body"] = {"response_format": FORMAT}
        whole = client.completions.create(**asked, n=2)
        parts = list(client.completions.create(**asked, n=2, stream=True))
        texts = ["", ""]
        for part in parts:
            texts[part.choices[0].index] += part.choices[0].text
        assert texts == [choice.text for choice in whole.choices]
        assert all(json.loads(text)["b"] in ("x", "yy") for text in texts)


def test_json_object(toy: Server) -> None:
    answer = ask(toy, {"response_format": {"type": "json_object"}, "max_tokens": 200})
    (choice,) = answer.json()["choices"]
    assert choice["message"]["content"].lstrip().startswith("{")
    if choice["finish_reason"] == "stop":
        json.loads(choice["message"]["content"])


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"guided_json": SCHEMA, "regex": "a"}, "invalid_value", "regex"),
        ({"guided_json": {}, "regex": "a"}, "invalid_value", "regex"),
        ({"guided_json": {"type": [[]]}}, "invalid_grammar", None),
        ({"structured_outputs": {}}, None, None),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "invalid_value", "structured_outputs"),
        ({"structured_outputs": {"nonsense": 1}}, "invalid_value", "structured_outputs"),
        ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
        (
            {"response_format": {"type": "json_schema"}},
            "invalid_value",
            "response_format.json_schema",
        ),
        ({"guided_json": {"uniqueItems": True}}, "unsupported_schema", None),
        ({"guided_json": "{"}, "invalid_grammar", None),
        ({"guided_regex": "(?=a)"}, "invalid_grammar", None),
        ({"guided_regex": "("}, "invalid_grammar", None),
        ({"grammar": "root ::= ((("}, "invalid_grammar", None),
        ({"guided_choice": []}, "invalid_grammar", None),
        ({"guided_whitespace_pattern": " "}, "invalid_value", "guided_whitespace_pattern"),
        ({"guided_json": {"enum": list(range(10_001))}}, "invalid_grammar", None),
        ({"guided_choice": ["a"], "use_beam_search": True}, "invalid_value", "structured_outputs"),
    ],
)
def test_refusals(toy: Server, fields: Any, code: str | None, param: str | None) -> None:
    answer = ask(toy, fields)
    if code is None:
        assert answer.status_code == 200
        return
    assert answer.status_code == 400, answer.text
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)


def test_warnings(toy: Server) -> None:
    schema = {"type": "string", "format": "nonsense", "maxlength": 3, "maxLength": 2}
    answer = ask(toy, {"guided_json": schema}).json()
    assert answer["warnings"] == [
        "the format 'nonsense' at # is not checked",
        "#/maxlength is no keyword and was ignored: did you mean 'maxLength'?",
    ]
    strict = {"name": "x", "strict": True, "schema": schema}
    refused = ask(toy, {"response_format": {"type": "json_schema", "json_schema": strict}})
    assert refused.json()["error"]["code"] == "unsupported_schema"


def test_bombs_are_refused_or_answered(toy: Server) -> None:
    """R77, R79: within their limits, beside streams that do not notice: the same texts, and on a
    quiet machine gaps of at most twice their p99."""
    assert said(toy, {"guided_choice": ["yes"]}) == "yes"
    found: dict[str, tuple[int, str]] = {}

    def attack(server: Server) -> None:
        for name, (schema, _) in BOMBS.items():
            answer = ask(server, {"guided_json": schema, "max_tokens": 4})
            error = answer.json().get("error") or {}
            found[name] = answer.status_code, error.get("code") or ""
            assert len(answer.text) < 4000

    with watching(toy) as watch:
        print(watch.holds(attack))
    assert found == {name: (400 if code else 200, code) for name, (_, code) in BOMBS.items()}
    assert said(toy, {"guided_choice": ["yes"]}) == "yes"


def test_many_schemas(toy: Server) -> None:
    """R80, in short: what is compiled and judged is bounded; each answer has its own form."""
    for i in range(30):
        assert said(toy, {"guided_choice": [f"c{i}"]}) == f"c{i}"


def test_the_compiler_may_die(server: Any) -> None:
    import psutil

    with server() as own:
        assert said(own, {"guided_choice": ["yes"]}) == "yes"
        compilers = [
            child
            for child in psutil.Process(own.process.pid).children()
            if "kvasir.grammar.trial" in child.cmdline()
        ]
        assert len(compilers) == 1
        compilers[0].kill()
        assert said(own, {"guided_choice": ["no"]}) == "no"


@pytest.mark.parametrize("fields", [{"ignore_eos": True}, {"min_tokens": 20}])
@pytest.mark.parametrize("stream", [False, True])
def test_where_the_structure_ends_the_answer_ends(toy: Server, fields: Any, stream: bool) -> None:
    """Before min_tokens and ignore_eos, as its warning says; where more can follow, more does."""
    asked = {"prompt": "x", "max_tokens": 30, "seed": 3, "n": 2, "stream": stream, **fields}
    for grammar, pattern in (({"regex": "[a-c]{4}"}, "[a-c]{4}"), ({"regex": "[a-c]+"}, ".{20,}")):
        answer = toy.post("/v1/completions", {**asked, **grammar})
        lines = [x[6:] for x in answer.text.splitlines() if x.startswith("data: {")]
        texts, ends = ["", ""], ["", ""]
        for said in lines if stream else [answer.text]:
            for choice in json.loads(said)["choices"]:
                texts[choice["index"]] += choice["text"]
                ends[choice["index"]] = choice["finish_reason"] or ""
        assert all(re.fullmatch(pattern, text) for text in texts), texts
        assert pattern != "[a-c]{4}" or ends == ["stop", "stop"]
