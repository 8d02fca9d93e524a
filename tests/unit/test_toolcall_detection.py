"""Which format a model has: by its chat template, or by its response template."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.load import load_tokenizer
from kvasir.tokenizer.messages import ChatMessage, History, PastCall
from kvasir.toolcalls.detect import Detected, detect, reasoning_of
from kvasir.toolcalls.format import Reasoning
from kvasir.toolcalls.grammar import kinds_of
from kvasir.toolcalls.history import told
from kvasir.toolcalls.parser import read_message
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.response import format_of, reasoning_in
from kvasir.toolcalls.table import FORMATS
from kvasir.weights.source import open_model
from tests import tool_templates
from tests.gguf_writer import write_gguf
from tests.reading_kinds import THINK, TOOLS
from tests.tiny_vocab import byte_level


@pytest.mark.parametrize(
    ("text", "name", "as_text", "is_parallel"),
    [
        (tool_templates.HERMES, "hermes", False, True),
        (tool_templates.CODER, "qwen3-coder", False, True),
        (tool_templates.AS_TEXT, "deepseek-v3", True, True),
        (tool_templates.LLAMA, "llama3-json", False, False),
    ],
)
def test_detection(tmp_path: Path, text: str, name: str, as_text: bool, is_parallel: bool) -> None:
    found = detect(template_of(tmp_path, text), ["<|im_end|>"])
    assert found.format == FORMATS[name], found.why
    assert (found.history.as_text, found.is_parallel) == (as_text, is_parallel)


def test_what_is_not_detected(tmp_path: Path) -> None:
    unknown = template_of(tmp_path, tool_templates.UNKNOWN)
    assert "no known format" in detect(unknown, ["<|im_end|>"]).why
    assert detect(unknown, [], "hermes").format == FORMATS["hermes"]
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    assert "does not show tools" in detect(template_of(tmp_path, plain), []).why
    for said, found in (
        ("{# a <think> b </think> #}", THINK),
        ("{# a <think> b #}", None),
        ("{# [THINK][/THINK] #}", Reasoning("[THINK]", "[/THINK]")),
    ):
        assert reasoning_of(template_of(tmp_path, said + plain)) == found


def test_what_a_template_leaves_out_is_told(tmp_path: Path) -> None:
    """Past calls stand in the content, tools in the system message."""
    only_shows = tool_templates.CHATML.replace("BEFORE", "").replace("AFTER", "")
    only_shows = only_shows.replace("tools|tojson", "tools|tojson + '<tool_call></tool_call>'")
    found = detect(template_of(tmp_path, only_shows), ["<|im_end|>"])
    assert found.format == FORMATS["hermes"] and found.history.is_written, found.why
    past = ChatMessage("assistant", "Hm.", (PastCall("x", "get", {"city": "Rom"}),))
    asked = ChatMessage("user", "?")
    call = '<tool_call>\n{\n"name":\n"get",\n"arguments":\n{"city": "Rom"}\n}\n</tool_call>'
    assert told([asked, past], [], found) == [asked, ChatMessage("assistant", f"Hm.\n{call}")]
    tool = {"type": "function", "function": {"name": "get", "parameters": {}}}
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    unseen = detect(template_of(tmp_path, plain), [], "generic")
    assert unseen.history.shown_as is None and unseen.format == FORMATS["generic"]
    system = told([ChatMessage("system", "Be kind."), asked], [tool], unseen)[0]
    assert system.content.startswith("Be kind.\n\nYou may call these functions")
    assert json.dumps(tool["function"]) in system.content and '"tool_call"' in system.content
    assert told([asked], [tool], unseen)[0].role == "system" and told([asked], [], unseen) == [
        asked
    ]


def test_past_calls_too_deep_to_be_written_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(900):  # a reader of JSON takes these
        deep = [deep]
    past = ChatMessage("assistant", "", (PastCall("x", "get", {"a": deep}),))
    found = Detected(FORMATS["llama3-pythonic"], "", History(is_written=True))
    with pytest.raises(RequestError, match="nested too deeply"):
        told([past], [], found)


def test_a_template_that_names_its_tools_otherwise(tmp_path: Path) -> None:
    text = tool_templates.HERMES.replace("tools", "xml_tools")
    found = detect(template_of(tmp_path, text), ["<|im_end|>"])
    assert found.format == FORMATS["hermes"] and found.history.shown_as == "xml_tools", found.why


def template_of(folder: Path, text: str) -> ChatTemplate:
    write_gguf(folder / "m.gguf", byte_level(**{"tokenizer.chat_template": text}), {})
    source = open_model(folder / "m.gguf")
    return ChatTemplate(source, load_tokenizer(source))


@pytest.mark.parametrize("opens", ["<think>\n", "<think>\n</think>\n\n"])
def test_prompts_that_open_reasoning_and_turns_without(tmp_path: Path, opens: str) -> None:
    end = "' }}{% endif %}"
    text = tool_templates.HERMES.replace(f"assistant\n{end}", f"assistant\n{opens}{end}")
    text = "{# </think> #}" + text
    assert text.count(opens) == 1
    found = detect(template_of(tmp_path, text), ["<|im_end|>"])
    assert found.format == FORMATS["hermes"], found.why


_CALL = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
_DELIMITED = {"unquoted_keys": True, "string_delims": [["<q>", "<q>"]]}
_TAGS = r"<p=(?P<key>\w+)>\s*(?P<value>.*?)\s*</p>"


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (
            {"open": "<t>", "close": "</t>", "repeats": True, "content": "json"}
            | {"transform": {"type": "function", "function": "{content}"}},
            '<t>{"name": "get", "arguments": {"city": "Rom"}}</t>',
        ),
        (
            {"open": "<a>", "close": "</a>", "content": "json", "transform_each": True}
            | {"transform": {"function": {"name": "{tool}", "arguments": "{given}"}}},
            '<a>[{"tool": "get", "given": {"city": "Rom"}}]</a>',
        ),
        (
            {"open_pattern": r"<t>\s*f:(?P<name>\w+)\(", "close": "</t>", "content": "json"}
            | {"transform": _CALL},
            '<t> f:get({"city": "Rom"}</t>',
        ),
        (
            {"open_pattern": "<t>(?P<name>[^>]+)>", "close": "</t>", "content": "xml-inline"}
            | {"content_args": {"tag_pattern": _TAGS}, "transform": _CALL},
            "<t>get><p=city>Rom</p></t>",
        ),
        (
            {"open_pattern": r"<t>call:(?P<name>\w+)", "close": "</t>", "content": "json"}
            | {"content_args": _DELIMITED, "transform": _CALL},
            "<t>call:get{city:<q>Rom<q>}</t>",
        ),
        (
            {"open": "<t>", "close": "</t>", "content": "json"}
            | {"transform": {"function": {"name": "{content.n}", "arguments": "{content.a}"}}},
            '<t>{"n": "get", "a": {"city": "Rom"}}</t>',
        ),
    ],
)
def test_formats_of_response_templates(field: dict[str, Any], text: str) -> None:
    form = format_of({"fields": {"tool_calls": field}})
    assert form is not None
    message = read_message(Reading(form, kinds=kinds_of(TOOLS)), text)
    assert [(c.name, json.loads(c.arguments)) for c in message.calls] == [("get", {"city": "Rom"})]
    assert not message.content


@pytest.mark.parametrize(
    "field",
    [
        {"open_pattern": r"<t>(?P<name>\w+).*?<m>", "close": "</t>", "transform": _CALL},
        {"open_pattern": r"(a+)+", "close": "</t>", "content": "json", "transform": _CALL},
        {"open_pattern": "a" * 2000, "close": "</t>", "content": "json", "transform": _CALL},
        {"open": "<t>", "close": "</t>", "content": "json", "transform": _CALL},
        {"open": "<t>", "close": "</t>", "content": "kv-lines", "transform": _CALL},
        {"open": "<t>$args", "close": "</t>", "content": "json", "transform": _CALL},
        {"open": 1, "close": [], "content": {}, "transform": "x"},
        {"open": "<t\ud800>", "close": "</t>", "content": "json", "transform": _CALL},
        "words",
    ],
)
def test_response_templates_that_patterns_cannot_say(field: object) -> None:
    assert format_of({"fields": {"tool_calls": field}}) is None
    assert format_of(field) is None and reasoning_in(field) is None


def test_a_response_template_decides(tmp_path: Path) -> None:
    template = template_of(tmp_path, tool_templates.HERMES)
    field = {"open": "<tool_call>", "close": "</tool_call>", "content": "json", "repeats": True}
    field["transform"] = {"type": "function", "function": "{content}"}
    thinks = {"open": "<reason>", "close": "</reason>"}
    template.response = {"fields": {"tool_calls": field, "thinking": thinks}}
    found = detect(template, ["<|im_end|>"])
    assert found.format == FORMATS["hermes"] and "response_template" in found.why
    assert reasoning_of(template) == Reasoning("<reason>", "</reason>")
    template.response = {"fields": {"tool_calls": {**field, "open": "<other>"}}}
    assert "response_template" not in detect(template, ["<|im_end|>"]).why


def test_half_of_a_character_is_no_marker() -> None:
    assert reasoning_in({"fields": {"thinking": {"open": "<t>", "close": "</t>"}}}) is not None
    assert reasoning_in({"fields": {"thinking": {"open": "<\ud800>", "close": "</t>"}}}) is None
