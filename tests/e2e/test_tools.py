"""Tools and reasoning, as clients ask for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests import tool_templates
from tests.e2e.harness import MODEL, Server, running_server
from tests.e2e.toy_model import write_toy_model
from tests.smollm2 import smollm2

CHAT = "/v1/chat/completions"
MESSAGES: list[Any] = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {
        "unit": {"enum": ["c", "f"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["unit", "n"],
    "additionalProperties": False,
}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
A_LIST = {"type": "array", "items": {"type": "integer"}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now", "parameters": EMPTY}},
]
THINKS = tool_templates.HERMES.replace(
    "assistant\n' }}{% endif %}",
    "assistant\n' }}{% if enable_thinking is defined and not enable_thinking %}"
    "{{ '<think>\n\n</think>\n\n' }}{% else %}{{ '<think>\n' }}{% endif %}{% endif %}",
)


@pytest.fixture(scope="module", params=["HERMES", "CODER", "LLAMA"])
def tooled(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    template = getattr(tool_templates, request.param)
    folder = write_toy_model(tmp_path_factory.mktemp("tools"), template=template)
    with running_server(folder) as server:
        yield server


@pytest.fixture(scope="module")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = write_toy_model(tmp_path_factory.mktemp("thinker"), template=THINKS)
    with running_server(folder) as server:
        yield server


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def check_call(name: str, arguments: str) -> None:
    given = json.loads(arguments)
    if name == "now":
        assert given == {}
    else:
        assert name == "weather" and set(given) == {"unit", "n"}
        assert given["unit"] in ("c", "f") and 0 <= given["n"] <= 99


def test_required_calls_are_valid(tooled: Server) -> None:
    """All that finish, whole and streamed alike."""
    n_finished = 0
    with client_of(tooled) as client:
        for seed in range(6):
            asked: dict[str, Any] = {
                "model": MODEL,
                "messages": MESSAGES,
                "tools": TOOLS,
                "tool_choice": "required",
                "max_tokens": 300,
                "seed": seed,
            }
            (choice,) = client.chat.completions.create(**asked).choices
            calls = choice.message.tool_calls
            assert calls and len({call.id for call in calls}) == len(calls)
            if choice.finish_reason == "tool_calls":
                n_finished += 1
                assert choice.message.content is None
                for call in calls:
                    check_call(call.function.name, call.function.arguments)
            streamed = client.chat.completions.create(**asked, stream=True)
            assert gathered(streamed) == (
                [(call.id, call.function.name, call.function.arguments) for call in calls],
                choice.finish_reason,
            )
    assert n_finished > 0


def gathered(stream: Any) -> tuple[list[tuple[str, str, str]], str | None]:
    calls: list[list[str]] = []
    finish = None
    for event in stream:
        for choice in event.choices:
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or ():
                if call.id:
                    assert call.index == len(calls)
                    calls.append([call.id, call.function.name, ""])
                calls[call.index][2] += call.function.arguments
    return [(a, b, c) for a, b, c in calls], finish


def test_a_schema_that_the_library_lacks(thinker: Server) -> None:
    """Of a tool that is not strict any object is taken; the others keep theirs."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}
    odd = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    answer = ask(thinker, {"tools": [odd, *TOOLS], "max_tokens": 5})
    assert [said for said in answer["warnings"] if said.startswith("odd: any object is taken")]
    odd["function"]["strict"] = True
    body = {"messages": MESSAGES, "tools": [odd, *TOOLS], "max_tokens": 5}
    refused = thinker.post(CHAT, body)
    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (400, "unsupported_schema")


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "function": {"name": "now"}},
        {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "required",
                "tools": [{"type": "function", "function": {"name": "now"}}],
            },
        },
    ],
)
def test_named(tooled: Server, choice: Any) -> None:
    fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False}
    (found,) = ask(tooled, fields)["choices"]
    assert found["finish_reason"] == "tool_calls"
    (call,) = found["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("now", {})


def ask(server: Server, fields: dict[str, Any]) -> Any:
    body = {"messages": MESSAGES, "max_tokens": 120, "seed": 2, **fields}
    answer = server.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_auto_and_none_are_text(tooled: Server) -> None:
    for choice in ("auto", "none"):
        (found,) = ask(tooled, {"tools": TOOLS, "tool_choice": choice, "max_tokens": 20})["choices"]
        assert found["message"]["content"] and "tool_calls" not in found["message"]


def test_tokenize_counts_tools(tooled: Server) -> None:
    body = {"messages": MESSAGES, "tools": TOOLS}
    counted = tooled.post(f"{CHAT}/input_tokens", body).json()["input_tokens"]
    assert tooled.post("/tokenize", body).json()["count"] == counted
    assert counted > tooled.post("/tokenize", {"messages": MESSAGES}).json()["count"]
    alone = tooled.post("/tokenize", {"prompt": "a", "tools": TOOLS})
    assert (alone.status_code, alone.json()["error"]["param"]) == (400, "tools")


def test_a_card_says_what_a_model_can(tooled: Server, thinker: Server) -> None:
    for server, more in ((tooled, ["tools"]), (thinker, ["tools", "thinking"])):
        card = server.post("/api/show", {}).json()
        assert card["capabilities"] == ["completion", *more]


def test_history_goes_on(tooled: Server) -> None:
    (first,) = ask(tooled, {"tools": TOOLS, "tool_choice": "required", "n": 1})["choices"]
    call = {**first["message"]["tool_calls"][0]}
    call["function"] = {"name": "weather", "arguments": '{"unit": "c", "n": 7}'}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
    messages = [*MESSAGES, said, result]
    ask(tooled, {"messages": messages, "tools": TOOLS})
    shown = tooled.post(CHAT + "/render", {"messages": messages, "tools": TOOLS}).json()
    (prompt,) = shown["prompts"]
    assert "weather" in prompt and "sunny" in prompt and "7" in prompt


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}}, None),
        ({"tools": TOOLS, "tool_choice": "some"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tools"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOLS[0], TOOLS[0]]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0]"),
        ({"tools": TOOLS * 65}, "tools"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": A_LIST}}]},
            "tools[0]",
        ),
        ({"tools": TOOLS, "guided_choice": ["a"]}, "tools"),
        ({"tools": TOOLS, "use_beam_search": True}, "tools"),
        ({"functions": [{"name": "a"}]}, "functions"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        ({"reasoning_effort": "mild"}, "reasoning_effort"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}, None),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]}, None),
    ],
)
def test_refusals(tooled: Server, fields: dict[str, Any], param: str | None) -> None:
    answer = tooled.post(CHAT, {"messages": MESSAGES, "max_tokens": 5, **fields})
    assert answer.status_code == 400, answer.text
    if param is not None:
        assert answer.json()["error"]["param"] == param


def test_a_model_without_tools_says_so(toy: Server) -> None:
    answer = toy.post(CHAT, {"messages": MESSAGES, "tools": TOOLS})
    assert answer.status_code == 400
    assert "--tool-format" in answer.json()["error"]["message"]


def test_reasoning(thinker: Server) -> None:
    """The prompt opens it: what is said until it is closed is no content."""
    message = ask(thinker, {})["choices"][0]["message"]
    assert message["reasoning_content"] == message["reasoning"] and not message["content"]
    assert message["reasoning"]
    streamed = thinker.post(
        CHAT, {"messages": MESSAGES, "seed": 2, "max_tokens": 120, "stream": True}
    )
    lines = [line[6:] for line in streamed.text.splitlines() if line.startswith("data: {")]
    deltas = [choice["delta"] for line in lines for choice in json.loads(line)["choices"]]
    thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
    assert thoughts == message["reasoning"]
    assert not "".join(delta.get("content") or "" for delta in deltas)
    hidden = ask(thinker, {"include_reasoning": False})["choices"][0]["message"]
    assert not hidden["content"] and "reasoning" not in hidden


def test_reasoning_may_be_turned_off(thinker: Server) -> None:
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    message = ask(thinker, off)["choices"][0]["message"]
    assert message["content"] and "reasoning" not in message
    assert ask(thinker, {"reasoning_effort": "none"})["choices"][0]["message"] == message
    structured = {**off, "guided_choice": ["yes"]}
    assert ask(thinker, structured)["choices"][0]["message"]["content"] == "yes"
    warned = ask(thinker, {"chat_template_kwargs": {"nonsense": 1}})["warnings"]
    assert warned == ["nonsense is nothing to the model's chat template and was ignored"]


ANTHROPIC: dict[str, Any] = {
    "messages": MESSAGES,
    "max_tokens": 300,
    "seed": 3,
    "tools": [
        {"name": "weather", "description": "of a place", "input_schema": SCHEMA},
        {"name": "now", "input_schema": EMPTY},
    ],
}


def test_anthropic(tooled: Server) -> None:
    asked = {**ANTHROPIC, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
    answer = tooled.post("/v1/messages", asked).json()
    assert answer["stop_reason"] == "tool_use", answer
    (block,) = answer["content"]
    assert block["type"] == "tool_use" and block["id"]
    check_call(block["name"], json.dumps(block["input"]))
    stream = tooled.post("/v1/messages", {**asked, "stream": True}).text
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    begun = events[1]["content_block"]
    assert (begun["id"], begun["name"]) == (block["id"], block["name"])
    parts = [event["delta"]["partial_json"] for event in events[2:-3]]
    assert json.loads("".join(parts)) == block["input"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    result = {"type": "tool_result", "tool_use_id": block["id"], "content": "sunny"}
    said = [
        *MESSAGES,
        {"role": "assistant", "content": [{"type": "text", "text": "So"}, block]},
        {"role": "user", "content": [result, {"type": "text", "text": "Go on"}]},
    ]
    more = {**ANTHROPIC, "messages": said, "max_tokens": 9}
    after = tooled.post("/v1/messages", more)
    assert after.status_code == 200 and "warnings" not in after.json(), after.text
    longer = after.json()["usage"]["input_tokens"] - answer["usage"]["input_tokens"]
    assert longer > len("sunny Go on")


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": {"type": "some"}},
        {"tool_choice": {"type": "tool"}},
        {"tool_choice": {"type": "tool", "name": "x"}},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a"}]}]},
    ],
)
def test_anthropic_refusals(tooled: Server, fields: dict[str, Any]) -> None:
    answer = tooled.post("/v1/messages", {**ANTHROPIC, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_anthropic_thinking(thinker: Server) -> None:
    asked = {"messages": MESSAGES, "max_tokens": 40, "seed": 2}
    first, *_ = thinker.post("/v1/messages", asked).json()["content"]
    assert first["type"] == "thinking" and first["thinking"]
    stream = thinker.post("/v1/messages", {**asked, "stream": True}).text
    events = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: ")]
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    assert "".join(delta["thinking"] for delta in deltas) == first["thinking"]


def test_ollama(tooled: Server, thinker: Server) -> None:
    options = {"seed": 2, "num_predict": 20, "temperature": 1.0}
    asked = {"messages": MESSAGES, "tools": TOOLS, "options": options, "stream": False}
    answer = tooled.post("/api/chat", asked).json()
    assert answer["message"]["content"] and "warnings" not in answer
    call = {"function": {"name": "weather", "arguments": {"unit": "c", "n": 7}}}
    said = [
        *MESSAGES,
        {"role": "assistant", "content": "", "thinking": "so", "tool_calls": [call]},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    after = tooled.post("/api/chat", {**asked, "messages": said})
    assert after.status_code == 200 and "warnings" not in after.json(), after.text
    assert after.json()["prompt_eval_count"] > answer["prompt_eval_count"] + len("sunny")
    asked = {"messages": MESSAGES, "options": options, "stream": False}
    thought = thinker.post("/api/chat", asked).json()["message"]
    assert thought["thinking"] and not thought["content"]
    lines = thinker.post("/api/chat", {**asked, "stream": True}).text.splitlines()
    told = [json.loads(line)["message"].get("thinking", "") for line in lines]
    assert "".join(told) == thought["thinking"]
    plain = thinker.post("/api/chat", {**asked, "think": False}).json()["message"]
    assert plain["content"] and "thinking" not in plain


def test_ollama_format(toy: Server) -> None:
    for path, body in (("/api/chat", {"messages": MESSAGES}), ("/api/generate", {"prompt": "x"})):
        asked = {**body, "format": SCHEMA, "stream": False, "options": {"seed": 1}}
        answer = toy.post(path, asked).json()
        text = answer["message"]["content"] if "message" in answer else answer["response"]
        check_call("weather", text)
    assert toy.post("/api/chat", {"messages": MESSAGES, "format": "xml"}).status_code == 400


def test_a_real_model() -> None:
    """Its chat template knows no tools: the format is said, and the answer warns of it."""
    sizes = {"max_model_len": 512, "kv_memory": "128MiB"}
    options = {"executor": "cpu", "engine": sizes, "tool_format": "hermes"}
    with running_server(smollm2(), **options) as server:
        for seed in range(4):
            asked = {"tools": TOOLS, "tool_choice": "required", "max_tokens": 80, "seed": seed}
            answer = ask(server, asked)
            (choice,) = answer["choices"]
            assert "the system message names them" in answer["warnings"][0]
            calls = choice["message"]["tool_calls"]
            if choice["finish_reason"] == "length":
                calls.pop()
            for call in calls:
                check_call(call["function"]["name"], call["function"]["arguments"])


def test_metrics(tooled: Server) -> None:
    """What is asked here, whatever was asked before."""
    names = ("kvasir_tool_calls_total", "kvasir_schema_refusals_total")
    calls, refused = (tooled.metric(name) for name in names)
    masks = tooled.metric("kvasir_grammar_masks_total")
    hits = tooled.metric("kvasir_grammar_cache_hits_total")
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    for _ in range(2):
        ask(tooled, asked)
    assert tooled.metric(names[0]) == calls + 2
    assert tooled.metric("kvasir_grammar_cache_hits_total") > hits
    assert tooled.metric("kvasir_grammar_masks_total") > masks
    assert tooled.metric("kvasir_grammar_mask_seconds_total") > 0
    assert "kvasir_grammar_compile_seconds_count{" in tooled.get("/metrics").text
    wrong = {"type": "array", "uniqueItems": True}
    assert tooled.post(CHAT, {"messages": MESSAGES, "guided_json": wrong}).status_code == 400
    assert tooled.metric(names[1]) == refused + 1
    assert tooled.metric(names[1], keyword="uniqueItems") >= 1
