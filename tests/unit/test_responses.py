"""OpenAI's Responses: what is read, and the events in their bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from kvasir.core.errors import RequestError
from kvasir.core.messages import TokenEvent, TokenLogprob
from kvasir.serve.dialects.items import answered, shown_items
from kvasir.serve.dialects.responses import RESPONSES, read
from kvasir.serve.state.conversations import read_item
from kvasir.serve.state.responses import ResponseRecord
from kvasir.serve.streams import EngineDown
from kvasir.serve.text import TextModel
from kvasir.tokenizer.messages import ChatMessage, PastCall
from tests.fake_run import heard, joined, resolved_of, run_of, said, toy_text

PLACE = b'"item_id":"msg_0","output_index":0,"content_index":0'


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def told(text: TextModel, *events: Any, **body: Any) -> list[bytes]:
    resolved = resolved_of(RESPONSES, {"input": "hi", "stream": True, **body}, text)
    return asyncio.run(heard(run_of(resolved, text, events)))


def event(kind: str, number: int, rest: bytes) -> bytes:
    name = f"response.{kind}".encode()
    said = b'event: %b\ndata: {"type":"%b","sequence_number":%d,' % (name, name, number)
    return said + rest + b"}\n\n"


def part(said: bytes) -> bytes:
    return b'{"type":"output_text","text":' + said + b',"annotations":[],"logprobs":[]}'


def item(status: bytes, content: bytes) -> bytes:
    head = b'{"id":"msg_0","type":"message","status":"' + status
    return head + b'","role":"assistant","content":[' + content + b"]}"


def test_a_stream_in_its_bytes(text: TextModel) -> None:
    found = told(text, said(0, 'é"', n_cached=2), said(0, "b", "stop"))
    whole = b'"\xc3\xa9\\"b"'
    assert found[2:9] == [
        event("output_item.added", 2, b'"output_index":0,"item":' + item(b"in_progress", b"")),
        event("content_part.added", 3, PLACE + b',"part":' + part(b'""')),
        event("output_text.delta", 4, PLACE + b',"delta":"\xc3\xa9\\"","logprobs":[]'),
        event("output_text.delta", 5, PLACE + b',"delta":"b","logprobs":[]'),
        event("output_text.done", 6, PLACE + b',"text":' + whole + b',"logprobs":[]'),
        event("content_part.done", 7, PLACE + b',"part":' + part(whole)),
        event("output_item.done", 8, b'"output_index":0,"item":' + item(b"completed", part(whole))),
    ]
    for number, kind in ((0, "created"), (1, "in_progress")):
        assert found[number].startswith(event(kind, number, b'"response":{"id":"resp_0",')[:-3])
    assert len(found) == 10 and found[9].startswith(b"event: response.completed\n")
    response = json.loads(found[9].partition(b"data: ")[2])["response"]
    assert response["usage"] == {
        "input_tokens": 21,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 25,
    }
    assert (response["status"], response["incomplete_details"]) == ("completed", None)


def test_the_whole_answer_is_that_of_the_last_event(text: TextModel) -> None:
    asked = {"max_output_tokens": 2, "metadata": {"a": "b"}, "user": "u", "instructions": "be"}
    logprobs = {"include": ["message.output_text.logprobs"], "top_logprobs": 1}
    events = [
        TokenEvent(0, tokens=(i,), logprobs=(TokenLogprob(i, -1.0, 0, ((i, -1.0),)),), finish=f)
        for i, f in ((65, None), (66, "length"))
    ]
    for body in (asked, {**asked, **logprobs}):
        streamed = told(text, *events, **body)
        whole = resolved_of(RESPONSES, {"input": "hi", **body}, text)
        answer = json.loads(joined(asyncio.run(run_of(whole, text, events).whole())))
        assert json.loads(streamed[-1].partition(b"data: ")[2])["response"] == answer
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert answer["metadata"] == {"a": "b"} and answer["max_output_tokens"] == 2
    scores = answer["output"][0]["content"][0]["logprobs"]
    assert [entry["token"] for entry in scores] == ["A", "B"]
    assert scores[0]["top_logprobs"] == [{"token": "A", "logprob": -1.0, "bytes": [65]}]


def test_a_failure_is_the_last_event(text: TextModel) -> None:
    found = told(text, said(0, "a"), EngineDown("gone"))
    failed = json.loads(found[-1].partition(b"data: ")[2])
    assert found[-1].startswith(b"event: response.failed\n")
    assert failed["sequence_number"] == len(found) - 1 == 5
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "engine_down", "message": "gone"}


def test_items_become_messages() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items = [
        {"role": "developer", "content": "brief"},
        {"type": "message", "role": "user", "content": parts},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "phase": "final_answer",
            "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}],
        },
    ]
    asked = read({"model": "m", "input": items, "instructions": "first"}, strict=False)
    assert asked.messages == (
        ChatMessage("system", "first"),
        ChatMessage("developer", "brief"),
        ChatMessage("user", "a\nb"),
        ChatMessage("assistant", "c"),
    )
    assert asked.warnings == ("input[].phase was ignored",)


def test_the_oldest_turns_make_room_for_the_answer(text: TextModel) -> None:
    turns = [{"role": "user", "content": str(i) * 800} for i in range(9)]
    body = {"input": turns, "instructions": "be brief", "max_output_tokens": 1000}
    with pytest.raises(RequestError, match="the context holds"):
        resolved_of(RESPONSES, body, text)
    resolved = resolved_of(RESPONSES, {**body, "truncation": "auto"}, text)
    prompt = bytes(resolved.job.prompts[0])
    assert b"be brief" in prompt and b"8" * 800 in prompt and b"4" * 800 not in prompt
    assert 3000 - 830 < len(prompt) <= 4096 - 1000
    answer = asyncio.run(run_of(resolved, text, [said(0, "a", "stop")]).whole())
    assert json.loads(joined(answer))["truncation"] == "auto"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"background": True, "store": False}, "background"),
        ({"background": True, "ttft_ms": 5}, "ttft_ms"),
        ({"conversation": "c", "previous_response_id": "r"}, "conversation"),
        ({"conversation": {"name": "c"}}, "conversation.id"),
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tool_choice": "required"}, "tools"),
        ({"reasoning": {"effort": "much"}}, "reasoning.effort"),
        ({"max_tool_calls": 0}, "max_tool_calls"),
        ({"prompt_cache_key": "k" * 2**20}, "prompt_cache_key"),
        ({"tools": [{"type": "function", "name": "f", "description": "d" * 2**20}]}, "tools"),
        ({"include": ["reasoning.encrypted_content"]}, "include"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"truncation": "middle"}, "truncation"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"metadata": {"k" * 65: "v"}}, "metadata"),
        ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, None),
        ({"input": []}, "input"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        (
            {"input": [{"type": "function_call", "name": "f", "call_id": "c", "arguments": "["}]},
            "input[0].arguments",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, None),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(body: dict[str, Any], param: str | None) -> None:
    with pytest.raises(RequestError) as caught:
        read({"model": "m", "input": "hi", **body}, strict=False)
    assert caught.value.status == 400
    assert caught.value.param and (param is None or caught.value.param == param)


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "so"}],
}


def test_calls_and_reasoning_are_turns() -> None:
    items = [
        {"role": "user", "content": "hi"},
        THOUGHT,
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hm"}]},
        CALL,
        {**CALL, "call_id": "c2", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {
            "type": "function_call_output",
            "call_id": "c2",
            "output": [{"type": "input_text", "text": "x"}],
        },
        {"role": "assistant", "content": "Well"},
        {"role": "assistant", "content": "then"},
    ]
    asked = read({"model": "m", "input": items}, strict=True)
    first, second = PastCall("c1", "f", {"a": 1}), PastCall("c2", "f", {})
    assert asked.messages == (
        ChatMessage("user", "hi"),
        ChatMessage("assistant", "Hm", (first, second), "so"),
        ChatMessage("tool", "sunny", call_id="c1"),
        ChatMessage("tool", "x", call_id="c2"),
        ChatMessage("assistant", "Well"),
        ChatMessage("assistant", "then"),
    )
    shown = shown_items(asked.messages, "0")
    kinds = [item["type"] for item in shown]
    assert kinds == [
        *("message", "reasoning", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message", "message"),
    ]
    again = read({"model": "m", "input": shown}, strict=True)
    assert again.messages == asked.messages


def test_an_answer_goes_on_as_it_was_said() -> None:
    cut = {**CALL, "arguments": '{"a": '}
    assert answered([THOUGHT, CALL, cut]) == (
        ChatMessage(
            "assistant", "", (PastCall("c1", "f", {"a": 1}), PastCall("c1", "f", {})), "so"
        ),
    )
    assert answered([]) == (ChatMessage("assistant", ""),)


def test_bounds_are_named_as_they_were_sent(text: TextModel) -> None:
    with pytest.raises(RequestError) as caught:
        resolved_of(RESPONSES, {"input": "hi", "max_output_tokens": 5000}, text)
    assert caught.value.param == "max_output_tokens"
    with pytest.raises(RequestError, match="5019 tokens, but the context holds 4096"):
        resolved_of(RESPONSES, {"input": "h" * 5000}, text)


def test_a_conversation_is_given_what_was_answered_byte_by_byte() -> None:
    """Items with log probabilities would take long to read, and to write again."""
    item = b'{ "id": "msg_1", "type": "message", "logprobs": [1.50] }'
    response = b'{"id": "resp_1", "status": "completed", "output": [' + item + b"]}"
    record = ResponseRecord(response=msgspec.Raw(response), messages=(ChatMessage("user", "hi"),))
    own, told = record.turn()
    assert told == ("msg_1", item)
    assert own[0] == "msg_1_0" and msgspec.json.decode(own[1])["content"][0]["text"] == "hi"
    failed = msgspec.Raw(response.replace(b"completed", b"failed"))
    assert not msgspec.structs.replace(record, response=failed).turn()


@pytest.mark.parametrize(
    "content",
    [
        "text",
        None,
        [],
        [{"type": "output_text", "text": "é", "logprobs": [{"logprob": -1.5}], "n": None}, {}],
    ],
)
def test_an_item_is_read_but_for_its_log_probabilities(content: object) -> None:
    data = msgspec.json.encode({"id": "msg_1", "content": content, "status": "completed"})
    item = read_item(data)
    assert msgspec.json.encode(item) == data == msgspec.json.encode(read_item(msgspec.Raw(data)))
    parts = item["content"] if isinstance(item["content"], list) else []
    assert [type(x["logprobs"]) for x in parts if "logprobs" in x] == [msgspec.Raw] * bool(parts)
