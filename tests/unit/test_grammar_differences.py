"""Where grammars differ from their standards: what docs/json-schema.md lists, each held."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kvasir.core.errors import RequestError
from kvasir.grammar.constraint import text_grammar
from tests.byte_grammar import byte_tokens, compiled, takes

PAGE = Path(__file__).parents[2] / "docs" / "json-schema.md"
A = {"a": {"type": "integer"}, "b": {"type": "integer"}}
OBJECT = {"type": "object", "properties": A}

SCHEMAS: dict[str, list[tuple[Any, tuple[str, ...], tuple[str, ...]]]] = {
    "order of properties": [
        (OBJECT, ('{"a":1,"b":2}', '{"b":2,"c":3}'), ('{"b":2,"a":1}', '{"c":3,"b":2}')),
        ({"const": {"a": 1, "b": 2}}, ('{"a":1,"b":2}',), ('{"b":2,"a":1}',)),
    ],
    "one spelling of a number": [
        ({"type": "integer"}, ("1",), ("1.0", "1e2")),
        ({"enum": [1, 2.5]}, ("1", "2.5"), ("1.0", "2.50")),
        ({"type": "number"}, ("1.50", "1e5"), ()),
        ({"type": "number", "minimum": 0.5, "maximum": 3}, ("1.50",), ("1e0",)),
    ],
    "one spelling of a character": [
        (
            {"type": "string"},
            ('"\\n"', '"é"', '"\\\\"'),
            ('"\\u00e9"', '"\\/"', '"\x7f"', '"\\u0001"'),
        ),
        (OBJECT, ('{"a":1}', '{"é":1}'), ('{"\\u0061":"x"}', '{"\\u00e9":1}')),
        ({"const": "a\x01"}, ('"a\\u0001"',), ('"a"',)),
    ],
    "control characters in a schema": [
        ({**OBJECT, "required": ["\x01"]}, ('{"\\u0001":1,"\\u0061":"x"}',), ('{"a":"x"}',)),
    ],
    "white space": [
        ({"type": "object"}, ("{" + 40 * " " + "}",), ("{" + 41 * " " + "}", " {}", "{} ")),
    ],
    "asserted formats": [
        ({"type": "string", "format": "date"}, ('"2024-02-29"',), ('"yesterday"',)),
        ({"type": "string", "format": "uuid"}, (), ('"1"',)),
    ],
    "other formats": [({"type": "string", "format": "iri"}, ('"not an iri"',), ())],
    "contents": [({"type": "string", "contentEncoding": "base64"}, ('"%"',), ())],
    "white space in patterns": [
        ({"type": "string", "pattern": r"^\s$"}, ('" "', '"\u00a0"'), ('"\ufeff"', '"\u0085"')),
        ({"type": "string", "pattern": r"^[^\s]$"}, ('"a"',), ('"\ufeff"', '"\u0085"')),
    ],
}
"""Each: schema, texts that are taken, texts that are not."""

REFUSED: dict[str, list[Any]] = {
    "`uniqueItems`": [{"type": "array", "uniqueItems": True}],
    "`contains`": [{"type": "array", "contains": {"const": 1}}],
    "`unevaluatedProperties`, `unevaluatedItems`": [
        {"unevaluatedProperties": False},
        {"unevaluatedItems": False},
    ],
    "`$dynamicRef`, `$recursiveRef`": [{"$dynamicRef": "#a"}, {"$recursiveRef": "#"}],
    "`$ref`": [{"$ref": "#a", "$defs": {"a": {"$anchor": "a"}}}, {"$ref": "https://a/b"}],
    "`oneOf`": [{"oneOf": [{"type": "integer"}, {"type": "number"}]}],
    "`not`": [{"type": "integer", "not": {"minimum": 3}}],
    "`if`": [{"if": {"minimum": 3}, "then": {"maximum": 5}}],
    "`propertyNames`": [{"type": "object", "propertyNames": {"maxLength": 3}}],
    "`minProperties`, `maxProperties`": [
        {"type": "object", "minProperties": 2},
        {**OBJECT, "maxProperties": 1},
    ],
    "`patternProperties`": [{"patternProperties": {"a": {"minimum": 1}, "b": {"minimum": 1}}}],
    "`pattern`": [
        {"type": "string", "pattern": "(?=a)"},
        {"type": "string", "pattern": r"\bfoo"},
        {"type": "string", "pattern": r"(.)\1"},
    ],
    "`minimum`, `maximum`": [{"type": "number", "maximum": 2**64}],
    "`exclusiveMinimum`, `exclusiveMaximum`": [
        {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
        {"type": "number", "exclusiveMaximum": -1, "minimum": -1.5},
    ],
    "`multipleOf`": [{"type": "integer", "multipleOf": 12345678899999998}],
    "`properties`": [
        {"type": "array", "items": {"properties": {f"p{i}": {} for i in range(491)}}},
        {
            "properties": {
                "a": {"anyOf": [{"properties": {f"{c}{i}": {} for i in range(250)}} for c in "ab"]}
            }
        },
    ],
    "no instance": [{"type": "string", "allOf": [{"type": "integer"}]}, {"enum": []}],
}
"""What is a 400."""

GBNF: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "greedy terminals": (
        'root ::= ("list" | "listen") "ed"',
        ("listened",),
        ("listed",),
    ),
    "`.`": ("root ::= .", ("a",), ("\n",)),
    "spaces around": ('root ::= "a"', ("a",), (" a", "a ")),
}
GBNF_REFUSED = {
    "`{0}`, `{,n}`": ('root ::= "a"{0}', 'root ::= "a"{,3}'),
    "`<token>`": ('root ::= <think> "a"',),
    "undefined rules": ('root ::= "a"\nb ::= c',),
    "`start`": ('root ::= start\nstart ::= "a"',),
}
LARK: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    "greedy terminals": ('start: NAME "1" | NAME "b"\nNAME: /[a-z]+/', ("a1",), ("ab",)),
    "`%ignore`": ('start: "a" "b"\n%ignore " "', ("a b",), (" ab", "ab ")),
    "trees": ('start: x -> one\n?x: y\n!y: "a"', ("a",), ("b",)),
}
LARK_REFUSED = {
    "priorities": ('start: A\nA.2: "a"',),
    "templates": ('start: pair{"a"}\npair{x}: x x',),
    "`%declare`, `%override`, `%extend`": (
        "start: X\n%declare X",
        'start: X\nX: "a"\n%override X: "b"',
        'start: X\nX: "a"\n%extend X: "b"',
    ),
    "imports": ("start: X\n%import mine.X",),
    "look-around": ('start: /a(?=b)/ "b"',),
    "tokens that end an answer (`<|im_end|>`, `<[2]>`, `<[*]>`)": (
        'start: "a" <|im_end|>',
        'start: "a" <|im_end|> "b"',
    ),
    "recursive terminals": ('start: X\nX: "a" X | "b"',),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_schema(name: str) -> None:
    for schema, taken, rejected in SCHEMAS[name]:
        matcher = compiled(schema)
        assert matcher is not None
        assert [text for text in taken if not takes(matcher, text)] == []
        assert [text for text in rejected if takes(matcher, text)] == []


@pytest.mark.parametrize("name", REFUSED)
def test_refused_schema(name: str) -> None:
    assert [schema for schema in REFUSED[name] if compiled(schema) is not None] == []


@pytest.mark.parametrize(
    ("text", "taken", "rejected"), [*GBNF.values(), *LARK.values()], ids=[*GBNF, *LARK]
)
def test_grammar(text: str, taken: tuple[str, ...], rejected: tuple[str, ...]) -> None:
    matcher = byte_tokens().compile(text_grammar(text).text)
    assert [one for one in taken if not takes(matcher, one)] == []
    assert [one for one in rejected if takes(matcher, one)] == []


@pytest.mark.parametrize(
    "text", [text for found in (GBNF_REFUSED, LARK_REFUSED) for x in found.values() for text in x]
)
def test_refused_grammar(text: str) -> None:
    with pytest.raises(RequestError):
        byte_tokens().compile(text_grammar(text).text)


def rows(heading: str) -> list[str]:
    """First cells of the table below ``heading``."""
    part = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \|", part, re.MULTILINE)
    return [cell for cell in found if cell not in ("difference", "keyword", "why")]


@pytest.mark.parametrize(
    ("heading", "held"),
    [
        ("What is taken and rejected", [*SCHEMAS]),
        ("What is refused", [*REFUSED]),
        ("GBNF", [*GBNF, *GBNF_REFUSED]),
        ("Lark", [*LARK, *LARK_REFUSED]),
    ],
)
def test_the_page_lists_them(heading: str, held: list[str]) -> None:
    assert rows(heading) == held
