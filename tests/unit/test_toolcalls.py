"""Each format: what it writes is read back, taken by its grammar, and found in a template."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.mark import ParameterSet

from kvasir.config.serving import TOOL_FORMATS
from kvasir.core.messages import TokenEvent
from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.errors import UnsupportedSchema
from kvasir.grammar.matcher import GrammarTokens
from kvasir.grammar.vocabulary import Vocabulary
from kvasir.text.choice import Choice
from kvasir.tokenizer.load import load_tokenizer
from kvasir.toolcalls.format import Reasoning, ToolFormat
from kvasir.toolcalls.grammar import Tool, kinds_of, thinking_first, tools_grammar
from kvasir.toolcalls.parser import read_message
from kvasir.toolcalls.pieces import Message, message_of
from kvasir.toolcalls.reading import Reading, bound, with_marks
from kvasir.toolcalls.table import FORMATS
from kvasir.toolcalls.writing import written
from kvasir.validation.sampling import SamplingParams
from kvasir.weights.source import open_model
from tests.byte_grammar import takes
from tests.gguf_writer import write_gguf
from tests.reading_kinds import READINGS, THINK, TOOLS, read_in, reading_of
from tests.tiny_vocab import byte_level
from tests.tool_templates import Calls

VECTORS: dict[str, Calls] = {
    "none": [],
    "one": [("get", {"city": "Paris"})],
    "empty": [("get_x", {})],
    "nested": [("get", {"city": 'a"b\\{', "n": -3, "o": {"a": ["}", {"</think>": None}]}})],
    "unicode": [("get", {"city": "Zürich 🏔\n]", "unit": "c"})],
    "two": [("get", {"city": ""}), ("get_x", {})],
}
MATRIX = [
    (form, vector, reading)
    for form, vector, reading in itertools.product(FORMATS.values(), VECTORS, READINGS)
    if form.next or len(VECTORS[vector]) < 2
]
FEW = ("hermes", "gemma-4", "llama3-pythonic")
"""One of each kind, where what is tested does not depend on more."""


def named(form: ToolFormat, vector: str, reading: str) -> ParameterSet:
    return pytest.param(form, vector, reading, id=f"{form.name}-{vector}-{reading}")


CASES = [named(*case) for case in MATRIX]
SPLIT = [named(*case) for case in MATRIX if case[2] == "plain" or case[0].name in FEW]


@pytest.mark.parametrize(("form", "vector", "kind"), CASES)
def test_reads_back_what_it_writes(form: ToolFormat, vector: str, kind: str) -> None:
    calls, (reading, before) = VECTORS[vector], reading_of(form, kind)
    for space in ("", "\n"):
        text = before + ("" if form.at_start else "Hello\n") + written(form, calls, space)
        message = read_message(reading, text)
        assert [(call.name, json.loads(call.arguments)) for call in message.calls] == calls
        said = "" if form.at_start else "Hello" if calls else "Hello\n"
        assert message.content == said
        assert message.reasoning == ("I <tool_call> {" if before else "")


@pytest.mark.parametrize(("form", "vector", "kind"), SPLIT)
def test_every_split_gives_the_same_message(form: ToolFormat, vector: str, kind: str) -> None:
    reading, before = reading_of(form, kind)
    text = before + ("" if form.at_start else "Hi \n") + written(form, VECTORS[vector], "\n")
    whole = read_message(reading, text)
    for pieces in ([text[:i], text[i:]] for i in range(len(text) + 1)):
        assert read_in(reading, pieces) == whole
    assert read_in(reading, list(text)) == whole


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_grammar_takes_what_is_written_and_nothing_else(form: ToolFormat) -> None:
    for kind in READINGS if form.name in FEW else ("plain",):
        reading, before = reading_of(form, kind)
        auto, needed, none = (
            tools_grammar(reading, TOOLS, choice) for choice in ("auto", "required", "none")
        )
        for name, calls in VECTORS.items():
            if calls and (form.next or len(calls) == 1):
                text = before + written(form, calls)
                got = takes(auto, text), takes(needed, text), takes(none, text)
                assert got == (True, True, False), name
        assert takes(auto, before + "Hello {}") and takes(none, before + "Hello {}")
        assert not takes(needed, before + "Hello") and not takes(needed, before)
        wrong = written(form, [("get", {"city": "x", "n": "three"})])
        unknown = written(form, [("other", {})])
        for text in (wrong, unknown):
            assert not takes(auto, before + text) and not takes(needed, before + text)
        only = tools_grammar(reading, TOOLS[1:], "required", parallel=False)
        assert takes(only, before + written(form, [("get_x", {})]))
        if form.next:
            assert not takes(only, before + written(form, [("get_x", {}), ("get_x", {})]))


def test_marks_are_tokens() -> None:
    """A marker that is a token of its own is known by its id: its letters are text."""
    form = FORMATS["mistral-v13"]
    special = {"[TOOL_CALLS]": 257, "[ARGS]": 258, "[THINK]": 259, "[/THINK]": 260, "</s>": 256}
    reading = with_marks(
        Reading(form, Reasoning("[THINK]", "[/THINK]"), kinds=kinds_of(TOOLS)), special
    )
    assert sorted(reading.marks) == [257, 258, 259, 260]
    marks = {name: reading.marks[token] for name, token in special.items() if name != "</s>"}
    text = "[TOOL_CALLS] [THINK] is a word {}"
    assert read_message(reading, text).content == text
    call = f"Hi{marks['[TOOL_CALLS]']}get{marks['[ARGS]']}" + '{"city": "[ARGS]"}'
    message = read_message(reading, f"{marks['[THINK]']}So [/THINK]{marks['[/THINK]']}{call}")
    assert (message.reasoning, message.content) == ("So [/THINK]", "Hi")
    assert message.calls[0].arguments == '{"city": "[ARGS]"}'
    auto, none = (
        marked_tokens().compile(tools_grammar(reading, TOOLS, choice).text)
        for choice in ("auto", "none")
    )
    ids = {mark: special[name] for name, mark in marks.items()}
    spelled = [x for char in call for x in ([ids[char]] if char in ids else char.encode())]
    for matcher, is_taken in ((auto, True), (none, False)):
        with_call = matcher.copy()
        try:
            with_call.consume(spelled)
        except ValueError:
            assert not is_taken
        else:
            assert is_taken and with_call.is_accepting
        matcher.consume(list(text.encode()))
        assert matcher.is_accepting


@cache
def marked_tokens() -> GrammarTokens:
    names = [b"</s>", b"[TOOL_CALLS]", b"[ARGS]", b"[THINK]", b"[/THINK]"]
    tokens = [*(bytes([i]) for i in range(256)), *names]
    encode = lambda text: list(text.encode())  # noqa: E731
    return GrammarTokens(Vocabulary(tokens, frozenset(range(256, 261)), (256,), encode), 261)


def test_what_is_cut_or_broken() -> None:
    reading, _ = reading_of(FORMATS["hermes"], "thinks")
    assert read_message(reading, "<think>so").reasoning == "so"
    assert read_message(reading, "<thi").content == "<thi"
    assert read_message(reading, "a <tool_").content == "a <tool_"
    broken = 'a <tool_call>\n{"nome": "get"}\n</tool_call>'
    assert read_message(reading, broken).content == broken
    cut = read_message(reading, '<tool_call>{"name":"get","arguments":{"city": "Pa')
    assert cut.calls[0].arguments == '{"city": "Pa' and not cut.content
    ended = read_message(reading, '<tool_call>{"name":"get","arguments":{}}</tool_c')
    assert ended.calls[0].arguments == "{}" and not ended.content
    after = read_message(reading, '<tool_call>{"name":"get","arguments":{}}</tool_call>\n so')
    assert after.content == "so"


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_a_call_that_is_cut_leaves_no_markup(form: ToolFormat) -> None:
    """Where a call must come, wherever it is cut; where one may, from its marker on."""
    reading, _ = reading_of(form, "plain")
    needed = msgspec.structs.replace(reading, must_call=True)
    vector = VECTORS["two" if form.next else "one"]
    text = written(form, vector)
    for n in range(len(text)):
        cut = read_message(needed, text[:n])
        assert not cut.content and read_in(needed, list(text[:n])) == cut, text[:n]
        assert [call.name for call in cut.calls] == [name for name, _ in vector][: len(cut.calls)]
        begun = read_message(reading, text[:n])
        assert begun.calls == cut.calls
        assert text[:n].startswith(begun.content) and form.trigger not in begun.content


@pytest.mark.parametrize("name", ["llama3-json", "generic"])
def test_what_only_looks_like_a_call_is_text_where_the_model_ends_there(
    name: str, tmp_path: Path
) -> None:
    """Of formats whose markers are letters that any text may have."""
    write_gguf(tmp_path / "m.gguf", byte_level(), {})
    tokenizer = load_tokenizer(open_model(tmp_path / "m.gguf"))
    reading, (tool,) = Reading(FORMATS[name]), [tool for tool, _ in VECTORS["one"]]
    text = written(FORMATS[name], VECTORS["one"])
    for begun in itertools.accumulate(text[: text.index(f'"{tool}"')]):
        tokens = tuple(tokenizer.encode(begun, add_special=False, parse_special=False))

        def said(tokens: tuple[int, ...], params: SamplingParams, finish: str) -> str:
            choice = Choice(0, tokenizer, params, reading)
            return choice.feed(TokenEvent(1, tokens, finish=finish)).text

        assert said(tokens, SamplingParams(), "stop") == begun
        assert not said(tokens, SamplingParams(), "length")
        more = (*tokens, *tokenizer.encode("#", add_special=False, parse_special=False))
        assert not said(more, SamplingParams(stop="#"), "length")


def test_ids_are_those_of_a_replay() -> None:
    text = written(FORMATS["hermes"], VECTORS["two"])
    reading, _ = reading_of(FORMATS["hermes"], "plain")
    first, second = read_message(reading, text).calls
    assert first.id != second.id and first.id.startswith("call_") and len(first.id) == 29
    assert read_message(reading, text).calls[0].id == first.id
    assert read_message(reading, text, choice=1).calls[0].id != first.id
    for name, pattern in (("kimi-k2", "functions.get:0"), ("mistral-v3", None)):
        form = FORMATS[name]
        reading, _ = reading_of(form, "plain")
        call = read_message(reading, written(form, VECTORS["one"])).calls[0]
        assert call.id == pattern or (pattern is None and len(call.id) == 9 and call.id.isalnum())


def test_schemas_that_cannot_be_kept_to() -> None:
    odd = {"type": "object", "properties": {"a": {"uniqueItems": True}}}
    reading, _ = reading_of(FORMATS["hermes"], "plain")
    loose = tools_grammar(reading, [Tool("get", odd)], "required")
    assert "any object is taken" in loose.warnings[0]
    assert takes(loose, written(FORMATS["hermes"], [("get", {"z": 1})]))
    with pytest.raises(UnsupportedSchema, match="uniqueItems"):
        tools_grammar(reading, [Tool("get", odd, strict=True)], "required")
    tagged, _ = reading_of(FORMATS["qwen3-coder"], "plain")
    text = {"type": "object", "properties": {"a": {"type": "string", "pattern": "b"}}}
    warned = tools_grammar(tagged, [Tool("get", text)], "auto").warnings
    assert warned == ("get: 'pattern' of a is not kept to",)


def test_a_name_has_one_spelling() -> None:
    """As in other JSON: written with escapes a known parameter would be taken for another."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    reading, _ = reading_of(FORMATS["hermes"], "plain")
    grammar = tools_grammar(reading, [Tool("get", schema)], "required")
    call = '<tool_call>{"name":"get","arguments":{"a":1%s}}</tool_call>'
    assert takes(grammar, call % "") and takes(grammar, call % ',"b":"x"')
    assert not takes(grammar, call % r',"\u0061":"x"')


NO_JSON = ("qwen3-coder", "llama3-pythonic", "gemma-4")


@pytest.mark.parametrize("name", NO_JSON)
def test_arguments_that_are_no_json_follow_the_whole_schema(name: str) -> None:
    """What a reference at its root names, what is required and not described, what is forbidden."""
    form = FORMATS[name]
    a = {"a": {"type": "integer"}}
    inner = {"type": "object", "properties": a, "required": ["a"]}
    cases: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        ({"$ref": "#/$defs/it", "$defs": {"it": inner}}, {"a": 1}, {}),
        ({**inner, "required": ["a", "b"]}, {"a": 1, "b": 2}, {"a": 1}),
        ({**inner, "properties": {**a, "z": False}}, {"a": 1}, {"a": 1, "z": 1}),
    ]
    for schema, valid, invalid in cases:
        tools = [Tool("get", schema)]
        reading = Reading(form, kinds=kinds_of(tools))
        grammar = tools_grammar(reading, tools, "required")
        assert grammar.warnings == ()
        assert takes(grammar, written(form, [("get", valid)]))
        assert not takes(grammar, written(form, [("get", invalid)]))
        (call,) = read_message(reading, written(form, [("get", valid)])).calls
        assert json.loads(call.arguments) == valid


@pytest.mark.parametrize("name", NO_JSON)
def test_what_such_arguments_do_not_keep_to_is_said(name: str) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "dependentRequired": {"a": ["b"]},
    }
    reading, _ = reading_of(FORMATS[name], "plain")
    (said,) = tools_grammar(reading, [Tool("get", schema)], "auto").warnings
    assert said == "get: 'allOf' is not kept to in arguments of this model's form"
    with pytest.raises(UnsupportedSchema, match="'allOf' is not kept to"):
        tools_grammar(reading, [Tool("get", schema, strict=True)], "auto")


def test_reasoning_goes_before_a_structure() -> None:
    answer = schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}})
    may = thinking_first(Reading(reasoning=THINK), answer)
    must = thinking_first(Reading(reasoning=THINK, is_open=True), answer)
    assert takes(may, '{"a": 1}') and takes(may, '<think>x {</think>\n{"a": 1}')
    assert not takes(must, '{"a": 1}') and takes(must, 'x</think>{"a": 1}')
    assert not takes(may, "<think>x</think>y") and not takes(may, "<think>x</think>")


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        " <think>\n so \n</think>\n\n Hi ",
        "<think>so</think>Hi",
        "<think>\n so \n",
        "<think> so </think>\n",
        "<think></think> Hi",
        "<thin",
        "Hi",
    ],
)
def test_reasoning_in_the_content_is_as_it_was_written(text: str, is_open: bool) -> None:
    """However it is cut; with calls, the content ends before the first of them."""
    said = text.partition("<think>")[2] if is_open else text
    apart = Reading(reasoning=THINK, is_open=is_open)
    thoughts = read_message(apart, said).reasoning
    for form, shown in (("content", ""), ("both", thoughts)):
        reading = msgspec.structs.replace(apart, thoughts=form)
        for at in range(len(said) + 1):
            message = read_in(reading, [said[:at], said[at:]])
            assert message == Message(said, shown), (form, at)
    call = '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>'
    if "Hi" in said:
        tools = Reading(FORMATS["hermes"], THINK, is_open, thoughts="content")
        message = read_message(tools, said + call)
        assert (message.content, len(message.calls)) == (said.rstrip(), 1)


def test_a_choice_tells_its_pieces(tmp_path: Path) -> None:
    """A marker that is a special token reaches the parser, which others do not."""
    write_gguf(tmp_path / "m.gguf", byte_level(), {})
    tokenizer = load_tokenizer(open_model(tmp_path / "m.gguf"))
    mark = next(i for i in sorted(tokenizer.special_ids) if tokenizer.piece(i) == "<|im_start|>")
    form = ToolFormat(name="x", call="<|im_start|>$name~$args")
    reading = bound(Reading(form, THINK), tokenizer)
    assert reading.marks == {mark: reading.format.trigger if reading.format else ""}

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special=False, parse_special=False)

    tokens = [*ids("<think>a</think> b <|im_start|>"), mark, *ids('get {"n": 1}')]
    choice = Choice(0, tokenizer, SamplingParams(), reading)
    deltas = [choice.feed(TokenEvent(1, (token,))) for token in tokens]
    deltas.append(choice.feed(TokenEvent(1, (), finish="stop")))
    message = message_of(piece for delta in deltas for piece in delta.pieces)
    assert (message.reasoning, message.content) == ("a", "b <|im_start|>")
    assert [(call.name, call.arguments) for call in message.calls] == [("get", '{"n": 1}')]
    assert "".join(delta.text for delta in deltas) == message.content
    assert deltas[-1].has_calls and not deltas[0].has_calls
    cut = Choice(0, tokenizer, SamplingParams(), reading)
    begun = [cut.feed(TokenEvent(1, (token,))) for token in tokens[:-1]]
    assert begun[-1].has_calls
    end = cut.feed(TokenEvent(1, (), finish="stop"))  # as a stop string inside of the arguments
    assert end.is_cut and end.n_calls == 1 and not end.has_calls


def test_the_option_names_every_format() -> None:
    assert ("auto", *sorted(FORMATS)) == TOOL_FORMATS
    page = (Path(__file__).parents[2] / "docs/tools.md").read_text("utf-8")
    assert [name for name in FORMATS if f"`{name}`" not in page] == []
