"""Anthropic's Messages: what is read, and the events in their bytes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from kvasir.core.errors import CapacityError, KvasirError, RequestError
from kvasir.serve.dialects.messages import MESSAGES, error_of, read, read_to_count
from kvasir.serve.streams import EngineDown
from kvasir.serve.text import TextModel
from kvasir.tokenizer.messages import ChatMessage
from tests.fake_run import heard, joined, resolved_of, run_of, said, toy_text

ASKED = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}
USAGE = (
    b'"usage":{"input_tokens":21,"output_tokens":%d,"cache_creation":null,'
    b'"cache_creation_input_tokens":null,"cache_read_input_tokens":null,"inference_geo":null,'
    b'"output_tokens_details":null,"server_tool_use":null'
)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return toy_text(tmp_path_factory.mktemp("toy"))


def told(text: TextModel, *events: Any, **body: Any) -> list[bytes]:
    resolved = resolved_of(MESSAGES, {**ASKED, "stream": True, **body}, text)
    return asyncio.run(heard(run_of(resolved, text, events)))


def event(kind: str, rest: bytes) -> bytes:
    name = kind.encode()
    return b'event: %b\ndata: {"type":"%b"%b}\n\n' % (name, name, rest)


def test_a_stream_in_its_bytes(text: TextModel) -> None:
    found = told(text, said(0, 'é"', n_cached=5), said(0, "bcd"), stop_sequences=["cd"])
    stop = b'"stop_reason":%b,"stop_sequence":%b,"stop_details":null,"container":null'
    assert found == [
        event(
            "message_start",
            b',"message":{"id":"msg_0","type":"message","role":"assistant","model":"toy",'
            b'"content":[],'
            + stop % (b"null", b"null")
            + b","
            + USAGE % 0
            + b',"service_tier":"standard"}}',
        ),
        event("content_block_start", b',"index":0,"content_block":{"type":"text","text":""}'),
        event(
            "content_block_delta",
            b',"index":0,"delta":{"type":"text_delta","text":"\xc3\xa9\\""}',
        ),
        event("content_block_delta", b',"index":0,"delta":{"type":"text_delta","text":"b"}'),
        event("content_block_stop", b',"index":0'),
        event(
            "message_delta",
            b',"delta":{' + stop % (b'"stop_sequence"', b'"cd"') + b"}," + USAGE % 6 + b"}",
        ),
        event("message_stop", b""),
    ]


@pytest.mark.parametrize(("finish", "reason"), [("stop", "end_turn"), ("length", "max_tokens")])
def test_a_whole_message(text: TextModel, finish: str, reason: str) -> None:
    run = run_of(resolved_of(MESSAGES, ASKED, text), text, [said(0, "ab", finish)])
    message = json.loads(joined(asyncio.run(run.whole())))
    assert message["content"] == [{"type": "text", "text": "ab", "citations": None}]
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, None)
    assert (message["usage"]["input_tokens"], message["usage"]["output_tokens"]) == (21, 2)


def test_errors_in_its_form(text: TextModel) -> None:
    assert told(text, said(0, "a"), EngineDown("gone"))[-1] == event(
        "error",
        b',"error":{"type":"overloaded_error","message":"gone","code":"engine_down"},'
        b'"request_id":null',
    ).replace(b"event: error\ndata: {", b"event: error\ndata: {")
    kinds = {
        RequestError("x", status=status): kind
        for status, kind in (
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (404, "not_found_error"),
            (413, "request_too_large"),
        )
    }
    kinds |= {CapacityError("x"): "rate_limit_error", KvasirError("x"): "api_error"}
    assert {error_of(error)["error"]["type"] == kind for error, kind in kinds.items()} == {True}


def test_a_silent_stream_is_pinged(text: TextModel) -> None:
    run = run_of(resolved_of(MESSAGES, ASKED, text), text, [])
    assert run.grammar.silence == event("ping", b"")


def test_system_and_blocks() -> None:
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    body = {
        **ASKED,
        "model": "m",
        "system": blocks,
        "messages": [{"role": "user", "content": blocks}],
    }
    asked = read({**body, "metadata": {"user_id": "u"}}, strict=False)
    assert asked.messages == (ChatMessage("system", "a"), ChatMessage("user", "a"))
    assert asked.standing.tenant == "u"
    assert asked.warnings == (
        "messages[].content[].cache_control was ignored",
        "system[].cache_control was ignored",
    )


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"tools": [{"name": "f g"}]}, "tools[0]"),
        ({"tool_choice": {"type": "some"}}, "tool_choice"),
        ({"thinking": {"type": "disabled", "budget_tokens": 1}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 0}}, "thinking.budget_tokens"),
        ({"stop": "x"}, "stop"),
        ({"n": 2}, "n"),
        ({"user": "u"}, "user"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "messages[0].content[0].source",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document"}]}]},
            "messages[0].content[0]",
        ),
        ({"messages": [*ASKED["messages"], {"role": "assistant", "content": "I"}]}, "messages"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        read({**ASKED, "model": "m", **body}, strict=False)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_counting_needs_no_length() -> None:
    body = {"model": "m", "messages": ASKED["messages"]}
    assert read_to_count(body, strict=True).messages == (ChatMessage("user", "hi"),)


def test_stop_sequences_are_named(text: TextModel) -> None:
    with pytest.raises(RequestError, match="stop_sequences must hold") as caught:
        resolved_of(MESSAGES, {**ASKED, "stop_sequences": [""]}, text)
    assert caught.value.param == "stop_sequences"
