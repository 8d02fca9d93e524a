"""Arguments that are not JSON, and answers whose parts have names."""

from __future__ import annotations

import json

import pytest

from kvasir.grammar.constraint import schema_grammar
from kvasir.toolcalls.grammar import kinds_of, thinking_first, tools_grammar
from kvasir.toolcalls.parser import read_message
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.table import FORMATS, REASONING
from tests.byte_grammar import takes
from tests.reading_kinds import TOOLS, read_in, reading_of


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("True", True),
        ("\nNone\n", None),
        ("-1.5e3", -1500.0),
        ("{'a': [1, 'x\\'y', (2,)], \"b\": false}", {"a": [1, "x'y", [2]], "b": False}),
        ('{"a": "\\u00e9\\/\\n"}', {"a": "é/\n"}),
        ("New York", "New York"),
        ("a" * 600, "a" * 600),
    ],
)
def test_values_between_tags_are_json_or_python(said: str, meant: object) -> None:
    """Many templates write past values as Python does, and models learn it."""
    reading, _ = reading_of(FORMATS["qwen3-coder"], "plain")
    before = "<tool_call>\n<function=get>\n<parameter=o>\n"
    text = f"{before}{said}\n</parameter>\n</function>\n</tool_call>"
    whole = read_message(reading, text)
    assert json.loads(whole.calls[0].arguments) == {"o": meant} and not whole.content
    assert read_in(reading, list(text)) == whole


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("", {}),
        ("a=1,", {"a": 1}),
        ("a='\\x41\\u00e9\\101\\q\\\n'", {"a": "Aé" + "A\\q"}),
        ("a=[(), {}, {'k': None},], b=\"it's\"", {"a": [[], {}, {"k": None}], "b": "it's"}),
    ],
)
def test_calls_as_in_python(said: str, meant: object) -> None:
    reading, _ = reading_of(FORMATS["llama3-pythonic"], "plain")
    text = f"[get({said})]"
    assert json.loads(read_message(reading, text).calls[0].arguments) == meant
    assert read_in(reading, list(text)) == read_message(reading, text)


@pytest.mark.parametrize(
    "said", ["a=1 b", "a=[1", "a={'k'", "a='x", "a=", "a", "=", "a=)", "a=[[)"]
)
def test_calls_that_are_broken_are_read_as_json(said: str) -> None:
    """What is open is closed, and the rest is content; what is cut stays open."""
    reading, _ = reading_of(FORMATS["llama3-pythonic"], "plain")
    message = read_message(reading, f"[get({said} ]]")
    arguments = message.calls[0].arguments
    assert message.content.endswith("]") == (json_or_none(arguments) is not None)


def json_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def test_harmony_names_each_part() -> None:
    thinks = next(one for one in REASONING if one.glue == "<|start|>assistant")
    reading = Reading(FORMATS["harmony"], thinks, kinds=kinds_of(TOOLS))
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    said = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
    headers = (
        "<|channel|>commentary to=functions.get <|constrain|>json<|message|>",
        " to=functions.get<|channel|>commentary json<|message|>",
    )
    auto, needed, none = (tools_grammar(reading, TOOLS, c) for c in ("auto", "required", "none"))
    for header in headers:
        for before, content in ((thought, ""), (thought + said, "I look."), ("", "")):
            text = before + header + '{"city": "Rom"}'
            message = read_message(reading, text)
            assert [(call.name, call.arguments) for call in message.calls] == [
                ("get", '{"city": "Rom"}')
            ]
            assert (message.content, message.reasoning) == (content, "Hm." if before else "")
            assert read_in(reading, list(text)) == message
            assert takes(auto, text) and takes(needed, text) and not takes(none, text), text
    final = thought + "<|channel|>final<|message|>It is to=functions.get hot."
    assert read_message(reading, final).content == "It is to=functions.get hot."
    assert takes(auto, final) and takes(none, final) and not takes(needed, final)
    again = read_message(reading, thought + said + thought + "<|channel|>final<|message|>So.")
    assert (again.content, again.reasoning) == ("I look.So.", "Hm.Hm.")
    schema = schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}})
    assert takes(thinking_first(reading, schema), thought + '<|channel|>final<|message|>{"a": 1}')
