"""Answers as ``transformers`` reads them with response templates, and as we do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir.toolcalls.grammar import Tool, kinds_of
from kvasir.toolcalls.parser import read_message
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.response import format_of, reasoning_in
from kvasir.toolcalls.table import FORMATS
from kvasir.toolcalls.writing import written
from tests.tool_templates import Calls

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
FIELDS: dict[str, dict[str, Any]] = {
    "hermes": {
        "open": "<tool_call>",
        "close": "</tool_call>",
        "repeats": True,
        "content": "json",
        "transform": {"type": "function", "function": "{content}"},
    },
    "command-r7b": {
        "open": "<|START_ACTION|>",
        "close": "<|END_ACTION|>",
        "content": "json",
        "transform_each": True,
        "transform": {
            "type": "function",
            "function": {"name": "{tool_name}", "arguments": "{parameters}"},
        },
    },
    "gemma-4": {
        "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
        "close": "<tool_call|>",
        "repeats": True,
        "content": "json",
        "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
        "transform": NAMED,
    },
    "qwen3-coder": {
        "open_pattern": r"<tool_call>\s*<function=(?P<name>\w+)>",
        "close": "</tool_call>",
        "repeats": True,
        "content": "xml-inline",
        "content_args": {
            "tag_pattern": r"<parameter=(?P<key>\w+)>\s*(?P<value>.*?)\s*</parameter>",
            "value_parser": {"name": "json", "args": {"allow_non_json": True}},
        },
        "transform": NAMED,
    },
}
THINKS = {"open": "<think>", "close": "</think>", "content": "text"}
SCHEMA = {"properties": {"city": {"type": "string"}, "n": {"type": "integer"}, "o": {}}}
READS = kinds_of([Tool("get", SCHEMA)])
VECTORS: list[Calls] = [
    [],
    [("get", {"city": "Zürich 🏔"})],
    [("get", {})],
    [("get", {"city": "a b", "n": -3, "o": {"k": ["x", {"y": None}, True, 1.5]}})],
    [("get", {"city": "x"}), ("get", {"n": 2})],
]


@pytest.mark.parametrize("name", FIELDS)
def test_messages_are_those_of_parse_response(name: str) -> None:
    parsing = pytest.importorskip("transformers.utils.chat_parsing", reason="make test-oracle")
    fields = {"thinking": THINKS, "tool_calls": FIELDS[name], "content": {"content": "text"}}
    template = {"defaults": {}, "start_anchor": "<turn>", "fields": fields}
    forms = [FORMATS[name]]
    if name != "qwen3-coder":  # whose pattern leaves the function's end out
        said = format_of(template)
        assert said is not None
        forms += [said] if name != "command-r7b" else []  # whose pattern has no ids
    for calls in VECTORS:
        for thoughts in ("", "<think>So.</think>\n"):
            text = f"{thoughts}Hello\n{written(FORMATS[name], calls)}"
            theirs = parsing.parse_response(text, template, prefix="")
            for form in forms:
                ours = read_message(Reading(form, reasoning_in(template), kinds=READS), text)
                found = [(call.name, json.loads(call.arguments)) for call in ours.calls]
                told = [call["function"] for call in theirs.get("tool_calls", ())]
                assert found == [(call["name"], call["arguments"]) for call in told] == calls
                assert ours.reasoning == theirs.get("thinking", "")
                assert ours.content.strip() == theirs.get("content", "")
