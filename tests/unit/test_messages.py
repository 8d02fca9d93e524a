"""Conversations: the offline class and the server have one validator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kvasir import LLM, SamplingParams
from kvasir.core.errors import RequestError
from kvasir.tokenizer.messages import History, read_messages
from tests import tiny

GREEDY = SamplingParams(temperature=0.0, max_tokens=2)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model"))
    with LLM(str(folder), max_model_len=96, threads=1) as made:
        yield made


HI = {"role": "user", "content": "hi"}
FUNCTION_CALL = "messages[1].function_call"
ARGUMENTS = "messages[1].tool_calls[0].function.arguments"


def calls(function: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [{"id": "a", "function": function}]}


def nested(depth: int) -> list[object]:
    """As deep as a parser takes it and more than the interpreter would write."""
    value: list[object] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        *(([], "messages"), ([[]], "messages"), ("hi", "messages"), (5, "messages")),
        *(([1], "messages[0]"), ([HI, [HI]], "messages[1]"), ([[HI], HI], "messages")),
        ([{"content": "x"}], "messages[0].role"),
        ([HI, {"role": "robot", "content": "x"}], "messages[1].role"),
        ([{"role": 1, "content": "x"}], "messages[0].role"),
        ([{"role": ["user"], "content": "x"}], "messages[0].role"),
        ([{"role": nested(2000), "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": []}], "messages[0].content"),
        ([{"role": "user", "content": b"x"}], "messages[0].content"),
        ([[HI], [{"role": "user", "content": {}}]], "messages[0].content"),
        (
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0].content[0].image_url",
        ),
        ([{"role": "user", "content": ["x", 1]}], "messages[0].content[1]"),
        ([{**HI, "tool_calls": [{}]}], "messages[0].tool_calls"),
        ([{**HI, "function_call": {}}, {**HI, "function_call": {"name": "x"}}], FUNCTION_CALL),
        ([HI, {"role": "tool", "content": "x", "tool_call_id": 1}], "messages[1].tool_call_id"),
        ([HI, {"role": "assistant", "tool_calls": {}}], "messages[1].tool_calls"),
        ([HI, {"role": "assistant", "tool_calls": [1]}], "messages[1].tool_calls[0]"),
        ([HI, calls({"name": 1})], "messages[1].tool_calls[0]"),
        ([HI, calls({"name": "f", "arguments": "{"})], ARGUMENTS),
        ([HI, calls({"name": "f", "arguments": "[]"})], ARGUMENTS),
    ],
)
def test_conversations_that_the_server_refuses(llm: LLM, messages: Any, param: str) -> None:
    """In the same words."""
    with pytest.raises(RequestError) as caught:
        llm.chat(messages, GREEDY, use_tqdm=False)
    assert caught.value.param == param
    if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
        with pytest.raises(RequestError) as told:
            read_messages(messages, sees=True)
        assert (told.value.message, told.value.param) == (caught.value.message, param)


def test_fields_of_messages_without_effect_are_told(
    llm: LLM, caplog: pytest.LogCaptureFixture
) -> None:
    plain = llm.chat([HI], GREEDY, use_tqdm=False)
    named = llm.chat([[{**HI, "name": "me"}], [{**HI, "name": "you"}]], GREEDY, use_tqdm=False)
    assert caplog.messages == ["messages[].name was ignored"]
    assert [output.prompt for output in named] == [plain[0].prompt] * 2


def test_calls_reach_templates_as_mappings() -> None:
    function = {"name": "f", "arguments": '{"a": [1]}'}
    given = [
        HI,
        {**calls(function), "content": None, "reasoning_content": "so"},
        {"role": "tool", "tool_call_id": "a", "name": "f", "content": "done"},
    ]
    (_, called, answered), warnings = read_messages(given)
    assert warnings == ()
    (call,) = called.said()["tool_calls"]  # type: ignore[misc]
    assert call == {
        "id": "a",
        "type": "function",
        "function": {"name": "f", "arguments": {"a": [1]}},
    }
    (as_text,) = called.said(History(as_text=True))["tool_calls"]  # type: ignore[misc]
    assert as_text["function"]["arguments"] == '{"a": [1]}'
    assert called.said()["reasoning_content"] == "so" and called.content == ""
    assert answered.said() == {"role": "tool", "content": "done", "tool_call_id": "a", "name": "f"}
