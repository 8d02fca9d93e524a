"""Structural tags: what texts the two forms of it take."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.grammar.errors import InvalidGrammar, UnsupportedSchema
from kvasir.grammar.structured import grammar_of
from kvasir.validation.sampling import StructuredOutputs
from tests.byte_grammar import byte_tokens, takes

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
GET = {"begin": "<f=get>", "schema": SCHEMA, "end": "</f>"}
PUT = {"begin": "<f=put>", "end": "</f>"}
BEFORE = {"type": "structural_tag", "structures": [GET, PUT], "triggers": ["<f="]}
AN_A = {"type": "json_schema", "json_schema": SCHEMA}
ANY = {"type": "any_text"}
OF_GET = {"type": "tag", "begin": "<f=get>", "content": AN_A, "end": "</f>"}
OF_PUT = {"type": "tag", "begin": "<f=put>", "content": ANY, "end": ["</f>", "</g>"]}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<f="], "tags": [OF_GET, OF_PUT]}
LISTED = {"type": "tags_with_separator", "tags": [OF_GET, OF_PUT], "separator": ", "}


def fixed(text: str) -> dict[str, Any]:
    return {"type": "const_string", "value": text}


def in_order(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": [*elements]}


ONCE = '<f=get>{"a":1}</f>'
FORMATS: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
    (fixed("yes"), ("yes",), ("", "yesyes", "no")),
    (fixed(""), ("",), ("a",)),
    (AN_A, ('{"a":1}',), ("{}", "")),
    ({"type": "regex", "pattern": "[a/]+"}, ("a/a",), ("b", "")),
    (ANY, ("", "a\nb"), ()),
    (in_order(fixed("A: "), AN_A, fixed(".")), ('A: {"a":1}.',), ('A: {"a":1}', '{"a":1}.')),
    (in_order(ANY, fixed("END")), ("END", "a\nENEND"), ("", "a", "ENDa")),
    ({"type": "or", "elements": [fixed("a"), AN_A]}, ("a", '{"a":1}'), ("", 'a{"a":1}')),
    ({"type": "or", "elements": [fixed("a"), in_order(fixed("b"), ANY)]}, ("a", "bcd"), ("ac",)),
    (in_order({"type": "optional", "content": fixed("a")}, fixed("b")), ("ab", "b"), ("a", "aab")),
    ({"type": "plus", "content": fixed("ab")}, ("ab", "abab"), ("", "aba")),
    ({"type": "star", "content": fixed("ab")}, ("", "abab"), ("a",)),
    ({"type": "repeat", "min": 1, "max": 2, "content": fixed("a")}, ("a", "aa"), ("", "aaa")),
    ({"type": "repeat", "min": 2, "max": -1, "content": fixed("a")}, ("aa", "aaaa"), ("a",)),
    ({"type": "repeat", "min": 0, "max": 0, "content": fixed("a")}, ("",), ("a",)),
    (OF_GET, (ONCE,), ("<f=get>{}</f>", "<f=get>{}")),
    (OF_PUT, ("<f=put>x\n</f>", "<f=put></g>"), ("<f=put>x", "<f=put>x</f>y")),
    ({**OF_PUT, "end": ""}, ("<f=put>x",), ("f",)),
    (
        TRIGGERED,
        ("", f"so {ONCE} and <f=put>x</g>!", f"<{ONCE}{ONCE}"),
        ("so <f=", "<f=other></f>", "<f=get>{}</f>"),
    ),
    ({**TRIGGERED, "at_least_one": True}, (ONCE, f"{ONCE} so {ONCE}"), ("", f"so {ONCE}")),
    ({**TRIGGERED, "stop_after_first": True}, ("", f"so {ONCE}"), (f"{ONCE}x", ONCE + ONCE)),
    (
        {**TRIGGERED, "at_least_one": True, "stop_after_first": True},
        (ONCE,),
        ("", f"so {ONCE}", ONCE + ONCE),
    ),
    (
        in_order(
            {"type": "tag", "begin": "<t>", "content": ANY, "end": "</t>"},
            {"type": "tag", "begin": "<m>", "content": TRIGGERED, "end": "</m>"},
        ),
        ("<t></t><m></m>", f"<t>so </t><m>a {ONCE} b</m>"),
        ("<t></t>", "<t></t><m><f=get>{}</f></m>", "<t></t><m></m>."),
    ),
    (LISTED, ("", ONCE, f"{ONCE}, <f=put></f>, {ONCE}"), (ONCE + ONCE, f"{ONCE}, ", "x")),
    ({**LISTED, "at_least_one": True}, (ONCE,), ("",)),
    ({**LISTED, "stop_after_first": True}, ("", ONCE), (f"{ONCE}, {ONCE}",)),
    ({**LISTED, "separator": ""}, ("", ONCE + ONCE), (f"{ONCE}, {ONCE}",)),
]
"""Each: a format, texts that are taken, texts that are not."""


def takes_all(asked: object, taken: tuple[str, ...], rejected: tuple[str, ...]) -> None:
    made = grammar_of(StructuredOutputs(structural_tag=asked))  # type: ignore[arg-type]
    matcher = byte_tokens().compile(made.text)
    assert [text for text in taken if not takes(matcher, text)] == []
    assert [text for text in rejected if takes(matcher, text)] == []


@pytest.mark.parametrize("is_text", [False, True])
def test_structures_behind_triggers(is_text: bool) -> None:
    taken = ("", "hello", "<f", f"so {ONCE}\n<f=put>{{}}</f> and", "<f<f=put>[]</f>")
    rejected = ("<f=", "<f=get>{}</f>", "<f=other>{}</f>", '<f=get>{"a":1}')
    takes_all(json.dumps(BEFORE) if is_text else BEFORE, taken, rejected)


@pytest.mark.parametrize(
    ("form", "taken", "rejected"), FORMATS, ids=[str(i) for i in range(len(FORMATS))]
)
def test_formats(form: dict[str, Any], taken: tuple[str, ...], rejected: tuple[str, ...]) -> None:
    takes_all({"type": "structural_tag", "format": form}, taken, rejected)


def test_warnings_of_their_schemas_are_told() -> None:
    schema = {"type": "string", "format": "nonsense"}
    form = {"type": "json_schema", "json_schema": schema}
    for asked in (
        {"format": in_order(form, form)},
        {"structures": [{**PUT, "schema": schema}], "triggers": ["<f="]},
    ):
        (warning,) = grammar_of(StructuredOutputs(structural_tag=asked)).warnings
        assert "nonsense" in warning


def deep(n: int) -> dict[str, Any]:
    found = fixed("a")
    for _ in range(n):
        found = {"type": "optional", "content": found}
    return found


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"structures": [], "triggers": ["a"]}, "length >= 1"),
        ({"structures": [GET], "triggers": ["a"]}, "starts with no trigger"),
        ({"structures": [GET], "triggers": [""]}, "starts with no trigger"),
        ({}, "structures"),
        ("{", "not JSON"),
        ('{"format": {"type": "json_schema", "json_schema": "\\ud800"}}', "surrogates"),
        ('{"triggers": ["a"], "structures": "\\ud800"}', "surrogates"),
        ({"format": {"type": "token", "token": 5}}, "Invalid value 'token'"),
        ({"format": {**AN_A, "style": "qwen_xml"}}, "style"),
        ({"format": {**ANY, "max_tokens": 5}}, "max_tokens"),
        ({"format": in_order(ANY, AN_A)}, "free text ends at the fixed text behind it"),
        ({"format": {"type": "star", "content": ANY}}, "free text ends at the fixed text"),
        ({"format": in_order(TRIGGERED, AN_A)}, "free text ends at the fixed text"),
        ({"format": {**TRIGGERED, "triggers": ["<g="]}}, "starts with no trigger"),
        (
            {"format": in_order({**TRIGGERED, "stop_after_first": True}, fixed("a"))},
            "must be the last",
        ),
        ({"format": {"type": "repeat", "min": 3, "max": 2, "content": ANY}}, "min 3, max 2"),
        ({"format": {"type": "repeat", "min": 1, "max": 10**6, "content": ANY}}, "10000"),
        ({"format": deep(70)}, "deeper than 60"),
        ({"format": fixed("a" * 2**20)}, "1048576 at most"),
    ],
)
def test_refusals(asked: Any, why: str) -> None:
    with pytest.raises(InvalidGrammar, match=why):
        grammar_of(StructuredOutputs(structural_tag=asked))


def test_a_schema_that_cannot_be_kept_to() -> None:
    form = {"type": "json_schema", "json_schema": {"type": "array", "uniqueItems": True}}
    with pytest.raises(UnsupportedSchema, match="uniqueItems"):
        grammar_of(StructuredOutputs(structural_tag={"format": form}))
    with pytest.raises(RequestError, match="white space"):
        grammar_of(StructuredOutputs(structural_tag=BEFORE, disable_any_whitespace=True))


def test_options_of_json() -> None:
    """White space, and properties that a schema does not name."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    cases: list[tuple[dict[str, Any], tuple[str, ...], tuple[str, ...]]] = [
        ({}, ('{"a":1}', '{  "a": 1}', '{"a":1,"b":2}'), ()),
        ({"whitespace_pattern": " ?"}, ('{"a":1}', '{ "a": 1 }'), ('{  "a":1}',)),
        ({"disable_any_whitespace": True}, ('{"a":1}', '{"a":1,"b":2}'), ('{"a": 1}',)),
        ({"disable_additional_properties": True}, ('{ "a": 1 }',), ('{"a":1,"b":2}',)),
    ]
    for options, taken, rejected in cases:
        made = grammar_of(StructuredOutputs(json=schema, **options))
        matcher = byte_tokens().compile(made.text)
        assert all(takes(matcher, text) for text in taken), options
        assert not any(takes(matcher, text) for text in rejected), options
