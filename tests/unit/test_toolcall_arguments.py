"""Arguments that are no JSON: odd names, any object, references into the whole schema."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from kvasir.core.errors import RequestError
from kvasir.core.params import mask_words
from kvasir.grammar.constraint import Constraint
from kvasir.grammar.errors import UnsupportedSchema
from kvasir.grammar.matcher import Matcher
from kvasir.toolcalls.format import Parameter, ToolFormat
from kvasir.toolcalls.grammar import Tool, kinds_of, tools_grammar
from kvasir.toolcalls.literals import MAX_DEPTH
from kvasir.toolcalls.parser import read_message
from kvasir.toolcalls.reading import Reading
from kvasir.toolcalls.table import FORMATS
from kvasir.toolcalls.writing import written
from tests.byte_grammar import EOS, byte_tokens, takes
from tests.reading_kinds import read_in

NO_JSON = [form for form in FORMATS.values() if form.arguments is not None]
formats = pytest.mark.parametrize("form", NO_JSON, ids=[form.name for form in NO_JSON])
FEW = ("qwen3-coder", "glm-4.5", "minicpm5", "deepseek-v3.2", "gemma-4", "lfm2")
ODD = (
    *(
        "filter[name]",
        "a.b",
        "x-y",
        "two words",
        "$top",
        "@type",
        "a/b",
        "ü",
        "1",
        "a>b",
        "(a",
        "a)",
    ),
    *(
        "{a",
        "a}",
        "a,b",
        'say "a"',
        "it's",
        "a=b",
        "a:b",
        "a\nb",
        " a",
        "a ",
        "",
        "=",
        "</a>",
        "-" * 300,
    ),
    *("a</arg_key>b", '">', ">\n", "<escape>", '<|"|>', "\\n", "a=", "true", "None", "a\\"),
)


def tool_of(names: tuple[str, ...], kind: dict[str, Any]) -> Tool:
    schema = {"type": "object", "properties": dict.fromkeys(names, kind)}
    return Tool("get", {**schema, "required": list(names)})


def read_back(form: ToolFormat, tools: list[Tool], arguments: dict[str, Any]) -> bool:
    """Whether a call with them is taken, and then it is read back, however it is cut. Raises
    RequestError."""
    reading = Reading(form, kinds=kinds_of(tools))
    grammar = tools_grammar(reading, tools, "required")
    text = written(form, [("get", arguments)])
    if not takes(grammar, text):
        return False
    whole = read_message(reading, text)
    (call,) = whole.calls
    assert json.loads(call.arguments) == arguments, text
    assert read_in(reading, list(text)) == whole
    return True


@pytest.mark.parametrize("form", [FORMATS[name] for name in FEW], ids=FEW)
@pytest.mark.parametrize("name", ODD)
def test_odd_names_are_read_back_or_refused(form: ToolFormat, name: str) -> None:
    values = (({"type": "string"}, "x, y=1"), ({"type": "integer"}, 7), ({}, [1, {"b": 2}]))
    among = ((name,), ("a", name), (name, "a", name + "b"))
    for i, (kind, value) in enumerate(values):
        names = sorted(among[(i + ODD.index(name)) % len(among)])
        try:
            is_taken = read_back(form, [tool_of(tuple(names), kind)], dict.fromkeys(names, value))
        except UnsupportedSchema as refused:
            assert refused.status == 400 and "rename it" in refused.message
            assert name or "empty" in refused.message
        else:
            assert is_taken


@formats
def test_what_is_read_back_at_least(form: ToolFormat) -> None:
    names = ("filter[name]", "a.b", "x-y", "two words", "it's", "$top", "(a")
    for name in names:
        assert read_back(form, [tool_of((name,), {"type": "string"})], {name: "x"})


@formats
def test_a_refused_name_is_refused_where_any_object_is_taken(form: ToolFormat) -> None:
    name = "a\n" if not isinstance(form.arguments, Parameter) else f"a{form.arguments.between}b"
    loose = {"type": "object", "properties": {name: {"type": "string", "uniqueItems": True}}}
    with pytest.raises(RequestError, match="rename it"):
        tools_grammar(Reading(form), [Tool("get", loose)], "auto")


@formats
def test_values_that_would_end_themselves(form: ToolFormat) -> None:
    """A listed text with the tag or the quotes around it: read back, or any object is taken."""
    said = form.arguments
    end = said.after if isinstance(said, Parameter) else said.quotes[0] if said else ""
    tool = tool_of(("a",), {"enum": [f"x{end}y", "z"]})
    reading = Reading(form, kinds=kinds_of([tool]))
    grammar = tools_grammar(reading, [tool], "required")
    text = written(form, [("get", {"a": f"x{end}y"})])
    if takes(grammar, text):
        assert json.loads(read_message(reading, text).calls[0].arguments) == {"a": f"x{end}y"}
    else:
        assert "any object is taken" in grammar.warnings[0]
        with pytest.raises(UnsupportedSchema):
            tools_grammar(reading, [Tool("get", tool.schema, strict=True)], "auto")


LOOSE = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "$t.(": {"type": "string"},
        "x-n": {"type": "integer"},
        "set": {"type": "array", "uniqueItems": True},
        "b": {"type": "boolean"},
    },
    "required": ["set"],
}


@formats
def test_any_object_is_taken_and_read_back(form: ToolFormat) -> None:
    values: list[dict[str, Any]] = [
        {},
        {"text": "a\nb", "x-n": 3},
        {"set": [1, 1.5, {"k": None, "l": "v"}], "b": True},
        {"zzz": {"other": ["x"]}},
        {"zz": ["no, schema=1 knows it"], "zzz": None},
    ]
    for tool in (Tool("get", LOOSE), Tool("get", LOOSE, is_loose=True)):
        for value in values:
            assert read_back(form, [tool], value), value


@formats
@pytest.mark.parametrize("seed", range(4))
def test_free_arguments_are_json(form: ToolFormat, seed: int) -> None:
    """Whatever the grammar lets a model write."""
    tools = [Tool("get", LOOSE)]
    reading = Reading(form, kinds=kinds_of(tools))
    grammar = tools_grammar(reading, tools, "required", parallel=False)
    text = drawn(form, grammar, random.Random(f"{form.name}{seed}"))
    message = read_message(reading, text)
    (call,) = message.calls
    assert isinstance(json.loads(call.arguments), dict)
    assert not message.content, text
    assert read_in(reading, list(text)) == message


def drawn(form: ToolFormat, grammar: Constraint, draw: random.Random) -> str:
    """An answer, of letters and signs as they come; after a while what is open is closed."""
    matcher = byte_tokens().compile(grammar.text).copy()
    said = form.arguments
    tag = said.after if isinstance(said, Parameter) else said.quotes[0] if said else ""
    ends = [part for part in form.call.split("$args")[1].split("~") if part]
    last = [part for part in form.close.split("~") if part]
    closing = [text.encode() for text in (tag, *'"]})', *ends, *last)]
    found = bytearray()
    bits = np.zeros(mask_words(EOS + 1), np.uint32)
    while not (len(found) > 150 and matcher.is_accepting):
        bits[:] = 0
        matcher.fill((), bits)
        flags = np.unpackbits(bits.view(np.uint8), bitorder="little")
        allowed = [int(i) for i in np.flatnonzero(flags) if i < 256]
        if not allowed:
            break
        plain = [i for i in allowed if 32 < i < 128] or allowed
        more = bytes((draw.choice(draw.choice((plain, plain, allowed))),))
        if len(found) > 150:
            order = draw.sample(closing, len(closing))
            more = next((text for text in order if goes_on(matcher, text)), more)
        matcher.consume(more)
        found += more
        assert len(found) < 3000
    return found.decode(errors="replace")


def goes_on(matcher: Matcher, text: bytes) -> bool:
    try:
        return matcher.copy().consume(text)
    except ValueError:
        return False


TREE = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "left": {"$ref": "#"},
        "more": {"type": "array", "items": {"$ref": "#/"}},
        "size": {"$ref": "#/properties/more"},
    },
    "required": ["name"],
    "additionalProperties": False,
}


@formats
def test_references_reach_the_whole_schema(form: ToolFormat) -> None:
    if not isinstance(form.arguments, Parameter):
        return
    inner = {"name": "b", "more": [{"name": "c", "size": []}]}
    value = {"name": "a", "left": inner, "more": [], "size": [inner]}
    moved = json.loads(json.dumps(TREE).replace("#/properties", "#/$defs/root/properties"))
    for schema in (TREE, {"$ref": "#/$defs/root", "$defs": {"root": moved}}):
        tools = [Tool("get", schema)]
        assert read_back(form, tools, value)
        reading = Reading(form, kinds=kinds_of(tools))
        grammar = tools_grammar(reading, tools, "required")
        assert grammar.warnings == ()
        odd = {"name": "a", "z": 1}
        wrongs: list[dict[str, Any]] = [{"left": {}}, {"left": {"name": 1}}, {"size": [odd]}]
        for wrong in wrongs:
            assert not takes(grammar, written(form, [("get", {"name": "a", **wrong})]))


TAGGED = [form for form in NO_JSON if isinstance(form.arguments, Parameter)]


@pytest.mark.parametrize("form", TAGGED, ids=[form.name for form in TAGGED])
def test_deep_arguments_are_read_and_too_deep_ones_are_json(form: ToolFormat) -> None:
    tools = [tool_of(("a",), {})]
    for n, is_whole in ((MAX_DEPTH - 2, True), (MAX_DEPTH + 20, False)):
        deep: list[Any] = []
        for _ in range(n - 1):
            deep = [deep]
        text = written(form, [("get", {"a": deep})])
        reading = Reading(form, kinds=kinds_of(tools))
        message = read_message(reading, text)
        assert (json.loads(message.calls[0].arguments) == {"a": deep}) is is_whole
