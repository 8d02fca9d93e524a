"""Answers with reasoning and calls, as each dialect words them; they are stored and read again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvasir.core.errors import RequestError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.serve.answer import Dialect
from kvasir.serve.dialects.chat import CHAT
from kvasir.serve.dialects.messages import MESSAGES
from kvasir.serve.dialects.ollama import OLLAMA_CHAT, OLLAMA_GENERATE
from kvasir.serve.dialects.responses import RESPONSES
from kvasir.serve.text import TextModel, load_text
from kvasir.serve.trial import TrialCompiler
from kvasir.weights.source import open_model
from tests import tool_templates
from tests.documented import Documented
from tests.e2e.toy_model import write_toy_model
from tests.fake_run import heard, joined, resolved_of, run_of, said

TURN = (
    '<think>\nso\n</think>\n\nHi\n<tool_call>\n{"name": "f", "arguments": {"a": [1]}}\n</tool_call>'
)
SCHEMA = {"type": "object", "properties": {"a": {"type": "array"}}}
FUNCTION = {"type": "function", "function": {"name": "f", "parameters": SCHEMA}}
BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
ASKED: dict[Dialect, dict[str, Any]] = {
    CHAT: {**BODY, "tools": [FUNCTION], "seed": 1},
    MESSAGES: {
        **BODY,
        "tools": [{"name": "f", "input_schema": SCHEMA}],
        "max_tokens": 99,
        "seed": 1,
    },
    OLLAMA_CHAT: {**BODY, "tools": [FUNCTION], "options": {"seed": 1}},
    OLLAMA_GENERATE: {"prompt": "hi", "options": {"seed": 1}},
    RESPONSES: {
        "input": "hi",
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}],
        "seed": 1,
    },
}
CALLING = [dialect for dialect, body in ASKED.items() if "tools" in body]
LOGPROBS = {"include": ["message.output_text.logprobs"]}


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TextModel:
    async def check(*_: Any) -> None:
        """Grammars are judged elsewhere."""

    monkeypatch.setattr(TrialCompiler, "check", check)
    template = "{# <think> </think> #}" + tool_templates.HERMES
    return load_text(open_model(write_toy_model(tmp_path / "toy", template=template)))


def whole(
    dialect: Dialect, text: TextModel, turn: str = TURN, more: dict[str, Any] | None = None
) -> Any:
    asked = {**ASKED[dialect], **(more or {}), "stream": False}
    resolved = resolved_of(dialect, asked, text)
    answer = asyncio.run(run_of(resolved, text, [said(0, turn, "stop")]).whole())
    return json.loads(joined(answer))


def streamed(
    dialect: Dialect, text: TextModel, turn: str = TURN, more: dict[str, Any] | None = None
) -> list[Any]:
    asked = {**ASKED[dialect], **(more or {}), "stream": True}
    resolved = resolved_of(dialect, asked, text)
    events = [*(said(0, char) for char in turn), said(0, "", "stop")]
    found = b"".join(asyncio.run(heard(run_of(resolved, text, events)))).decode()
    lines = [line.removeprefix("data: ") for line in found.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_chat(text: TextModel) -> None:
    (choice,) = whole(CHAT, text)["choices"]
    message = choice["message"]
    assert (choice["finish_reason"], message["content"]) == ("tool_calls", "Hi")
    assert message["reasoning_content"] == message["reasoning"] == "so"
    (call,) = message["tool_calls"]
    assert call["type"] == "function" and call["id"].startswith("call_")
    assert call["function"] == {"name": "f", "arguments": '{"a": [1]}'}
    told: dict[str, str] = dict.fromkeys(("content", "reasoning", "arguments"), "")
    begun = []
    for event in streamed(CHAT, text):
        (part,) = event["choices"]
        for key in ("content", "reasoning"):
            told[key] += part["delta"].get(key) or ""
        for made in part["delta"].get("tool_calls", []):
            assert made["index"] == 0
            told["arguments"] += made["function"]["arguments"]
            begun += [(made["id"], made["function"]["name"])] if "id" in made else []
    assert told == {"content": "Hi", "reasoning": "so", "arguments": '{"a": [1]}'}
    assert begun == [(call["id"], "f")] and part["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("fields", "content", "reasoning"),
    [
        ({"separate_reasoning": True}, "Hi", "so"),
        ({"separate_reasoning": False}, "<think>\nso\n</think>\n\nHi", ""),
        ({"reasoning_format": "none"}, "<think>\nso\n</think>\n\nHi", ""),
        ({"reasoning_format": "deepseek"}, "Hi", "so"),
        ({"reasoning_format": "auto"}, "Hi", "so"),
        ({"reasoning_format": "deepseek-legacy"}, "<think>\nso\n</think>\n\nHi", "so"),
    ],
)
def test_where_reasoning_is_told(
    text: TextModel, fields: dict[str, Any], content: str, reasoning: str
) -> None:
    message = whole(CHAT, text, more=fields)["choices"][0]["message"]
    assert (message["content"], message.get("reasoning", "")) == (content, reasoning)
    assert message["tool_calls"][0]["function"]["name"] == "f"
    told = dict.fromkeys(("content", "reasoning"), "")
    for event in streamed(CHAT, text, more=fields):
        for key in told:
            told[key] += event["choices"][0]["delta"].get(key) or ""
    assert told == {"content": content, "reasoning": reasoning}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_format": "deep"}, "reasoning_format"),
        ({"reasoning_format": "none", "separate_reasoning": True}, "separate_reasoning"),
        ({"include_reasoning": False, "separate_reasoning": False}, "include_reasoning"),
        ({"reasoning_budget_message": "x"}, "reasoning_budget_message"),
        (
            {"reasoning_budget_message": "x" * 5000, "thinking_token_budget": 3},
            "reasoning_budget_message",
        ),
        (
            {"reasoning_budget_message": "a</think>", "thinking_token_budget": 3},
            "reasoning_budget_message",
        ),
    ],
)
def test_what_reasoning_cannot_be_asked(
    text: TextModel, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        resolved_of(CHAT, {**ASKED[CHAT], **fields}, text)
    assert caught.value.param == param


def test_messages(text: TextModel) -> None:
    answer = whole(MESSAGES, text)
    thought, content, call = answer["content"]
    assert answer["stop_reason"] == "tool_use"
    assert (thought["thinking"], content["text"]) == ("so", "Hi")
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "f", {"a": [1]})
    assert call["caller"] == {"type": "direct"}
    events = streamed(MESSAGES, text)
    blocks = [event for event in events if event["type"] == "content_block_start"]
    kinds = [(block["index"], block["content_block"]["type"]) for block in blocks]
    assert kinds == [(0, "thinking"), (1, "text"), (2, "tool_use")]
    stops = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert stops == [0, 1, 2]
    parts = [
        event["delta"]["partial_json"]
        for event in events
        if event["type"] == "content_block_delta" and event["index"] == 2
    ]
    assert json.loads("".join(parts)) == {"a": [1]}
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize(
    "turn", ["<think>\nso", "", TURN.partition("Hi")[0] + "Hi", TURN + '\n<tool_call>\n{"na']
)
def test_messages_have_the_blocks_of_their_streams(text: TextModel, turn: str) -> None:
    found = [block["type"] for block in whole(MESSAGES, text, turn)["content"]]
    events = streamed(MESSAGES, text, turn)
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert found == [event["content_block"]["type"] for event in starts]


def test_ollama(text: TextModel) -> None:
    message = whole(OLLAMA_CHAT, text)["message"]
    assert (message["thinking"], message["content"]) == ("so", "Hi")
    (call,) = message["tool_calls"]
    assert call["function"] == {"name": "f", "arguments": {"a": [1]}}
    lines = streamed(OLLAMA_CHAT, text)
    said_all = "".join(line["message"]["content"] for line in lines)
    thoughts = "".join(line["message"].get("thinking", "") for line in lines)
    assert (said_all, thoughts) == ("Hi", "so")
    assert lines[-2]["message"]["tool_calls"] == [call] and lines[-1]["done"]


def test_ollama_generates(text: TextModel) -> None:
    turn = "<think>\nso\n</think>\n\nHi"
    answer = whole(OLLAMA_GENERATE, text, turn)
    assert (answer["thinking"], answer["response"]) == ("so", "Hi")
    lines = streamed(OLLAMA_GENERATE, text, turn)
    assert "".join(line["response"] for line in lines) == "Hi"
    assert "".join(line.get("thinking", "") for line in lines) == "so"
    raw = whole(OLLAMA_GENERATE, text, turn, {"raw": True})
    assert (raw.get("thinking"), raw["response"]) == (None, turn)
    with pytest.raises(RequestError, match="raw does not go together"):
        resolved_of(OLLAMA_GENERATE, {"prompt": "hi", "raw": True, "think": True}, text)


def test_responses(text: TextModel) -> None:
    answer = whole(RESPONSES, text)
    thought, message, call = answer["output"]
    part = {"type": "reasoning_text", "text": "so"}
    assert thought == {
        "id": "rs_0",
        "type": "reasoning",
        "status": "completed",
        "summary": [],
        "content": [part],
    }
    assert (message["id"], message["content"][0]["text"]) == ("msg_0_1", "Hi")
    call_id = call.pop("call_id")
    assert call_id.startswith("call_") and call == {
        "id": "fc_0_2",
        "type": "function_call",
        "status": "completed",
        "name": "f",
        "arguments": '{"a": [1]}',
    }
    tool = {"description": None, "parameters": SCHEMA, "strict": False}
    assert answer["tools"] == [{"type": "function", "name": "f", **tool}]
    assert (answer["tool_choice"], answer["parallel_tool_calls"]) == ("auto", True)
    events = streamed(RESPONSES, text)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["response"]["output"] == [
        *answer["output"][:2],
        {**call, "call_id": call_id},
    ]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for kind in kinds if not kind.endswith("delta")] == [
        "created",
        "in_progress",
        *("output_item.added", "content_part.added"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added"),
        *("output_text.done", "content_part.done", "output_item.done"),
        "output_item.added",
        *("function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    begun = [event["item"] for event in events if event["type"].endswith("item.added")]
    assert begun[2]["arguments"] == "" and begun[2]["name"] == "f"
    for kind, words in (("reasoning_text", "so"), ("output_text", "Hi")):
        parts = [event["delta"] for event in events if event["type"].endswith(f"{kind}.delta")]
        assert "".join(parts) == words
    parts = [event["delta"] for event in events if event["type"].endswith("arguments.delta")]
    assert "".join(parts) == '{"a": [1]}' and len(parts) > 3


def test_reasoning_is_counted(text: TextModel) -> None:
    """The bytes of "\nso\n", and those of the end but the last, by which it is known."""
    n = len("\nso\n") + len("</think>") - 1
    usage = whole(CHAT, text)["usage"]
    assert usage["completion_tokens_details"] == {"reasoning_tokens": n}
    assert whole(MESSAGES, text)["usage"]["output_tokens_details"] == {"thinking_tokens": n}
    (*_, end) = streamed(RESPONSES, text)
    assert end["response"]["usage"]["output_tokens_details"] == {"reasoning_tokens": n}


def test_logprobs_of_responses_are_those_of_the_text(text: TextModel) -> None:
    """However many tokens come at a time."""
    found = []
    for size in (1, 7, 1000):
        body = {**ASKED[RESPONSES], **LOGPROBS}
        resolved = resolved_of(RESPONSES, body, text)
        tokens = TURN.encode()
        steps = [tokens[i : i + size] for i in range(0, len(tokens), size)]
        events = [
            TokenEvent(
                0, tokens=tuple(step), logprobs=tuple(TokenLogprob(token, -1.0) for token in step)
            )
            for step in steps
        ]
        events.append(said(0, "", "stop"))
        answers = [json.loads(joined(asyncio.run(run_of(resolved, text, events).whole())))]
        last = asyncio.run(heard(run_of(resolved, text, events)))[-1]
        answers.append(json.loads(last.partition(b"data: ")[2])["response"])
        found += [answer["output"] for answer in answers]
    entries = found[0][1]["content"][0]["logprobs"]
    assert "".join(entry["token"] for entry in entries).lstrip().startswith("Hi")
    for output in found:
        assert output == found[0]


@pytest.mark.parametrize("dialect", CALLING, ids=lambda dialect: dialect.name)
def test_plain_text_and_what_is_cut(text: TextModel, dialect: Dialect) -> None:
    assert "Hello" in json.dumps(whole(dialect, text, "Hello"))
    assert '"tool_use"' not in json.dumps(whole(dialect, text, "Hello"))
    cut = json.dumps(whole(dialect, text, TURN[:-24]))
    assert '"f"' in cut


def test_prompts_keep_their_bytes(text: TextModel) -> None:
    """Ids of calls differ with the prompt, and stay with it."""
    first = resolved_of(CHAT, ASKED[CHAT], text).job.reading
    again = resolved_of(CHAT, ASKED[CHAT], text).job.reading
    other = resolved_of(CHAT, {**ASKED[CHAT], "seed": 2}, text).job.reading
    assert first and again and other
    assert msgspec.structs.asdict(first) == msgspec.structs.asdict(again)
    assert first.key != other.key


PATHS = {
    CHAT: "/v1/chat/completions",
    MESSAGES: "/v1/messages",
    OLLAMA_CHAT: "/api/chat",
    RESPONSES: "/v1/responses",
}


@pytest.mark.parametrize("dialect", PATHS, ids=lambda dialect: dialect.name)
def test_their_events_are_as_documented(dialect: Dialect, text: TextModel) -> None:
    documented = Documented()
    event, told = documented.event("POST", PATHS[dialect]), streamed(dialect, text)
    assert len(told) > 5
    for value in told:
        assert not documented.faults(event, value), value
    assert documented.faults(event, {**told[0], "more": 1})
