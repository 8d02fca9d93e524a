"""Patterns that every name or text has, and those of which nothing is said: the same instances."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.grammar.schema import prepare
from tests.byte_grammar import compiled, spelled, takes

CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "a pattern of every name": (
        {"type": "object", "patternProperties": {".*": {"type": "integer"}}},
        [{}, {"": 1}, {"a\n": 1, "b": 2}],
        [{"a": "x"}],
    ),
    "a pattern of every name, and none besides": (
        {"patternProperties": {"": {"type": "integer"}}, "additionalProperties": False},
        [{}, {"x": 1}, 5],
        [{"x": "x"}],
    ),
    "a pattern of every name beside named ones": (
        {
            "type": "object",
            "patternProperties": {"^.*": {"type": "integer", "minimum": 3}},
            "properties": {"b": {"type": "integer", "maximum": 5}},
        },
        [{"a": 3}, {"b": 4}],
        [{"a": 2}, {"b": 6}, {"c": "x"}],
    ),
    "a pattern that every name has, and says nothing": (
        {
            "type": "object",
            "patternProperties": {"": True, "^a": {"type": "integer"}},
            "properties": {"b": {"type": "number"}},
            "additionalProperties": False,
        },
        [{"b": 1, "a": 3, "c": "x"}],
        [{"b": "x"}, {"a": "x"}],
    ),
    "patterns of which nothing is said": (
        {
            "type": "object",
            "patternProperties": {"^x_": {}, "^y": {"type": "integer"}, "z$": True},
            "properties": {"b": {"type": "number"}, "y": {}},
        },
        [{"b": 1, "x_": [], "z": 1, "other": None, "y2": 5}],
        [{"b": "x"}, {"ya": "x"}],
    ),
    "a pattern of which nothing is said where others are not free": (
        {"type": "object", "patternProperties": {"^x_": {}}, "additionalProperties": False},
        [{}, {"x_1": []}],
        [{"y": 1}],
    ),
    "patterns behind the parts of a schema": (
        {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "allOf": [{"patternProperties": {"c": {"minimum": 2}}, "required": ["b"]}],
            "patternProperties": {"^[ab]+$": {"type": "string"}},
        },
        [{"b": "a", "zb": 2}, {"b": "", "c": 2}],
        [{"b": 1}, {"zb": 2}, {"b": "a", "c": 1}, {"b": "a", "zb": "a"}],
    ),
    "names that a pattern of the names may have, behind other parts": (
        {
            "additionalProperties": True,
            "propertyNames": {"pattern": "^[ab]+$"},
            "allOf": [{"patternProperties": {"^x_": {"type": "integer"}}}],
        },
        [{"ab": ""}, {"a": 3}, 5],
        [{"c": 1}, {"x_": 1}],
    ),
    "what depends on a required property, of what need not be an object": (
        {"required": ["a"], "dependentSchemas": {"a": {"type": "object", "required": ["b"]}}},
        [2, {"a": 1, "b": 1}],
        [{"a": 1}, {"b": 1}],
    ),
    "a pattern that every text has": (
        {"type": "string", "pattern": ".*", "maxLength": 2},
        ["", "a\n"],
        ["abc", 1],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_exact(case: str) -> None:
    schema, valid, invalid = CASES[case]
    matcher = compiled(schema)
    assert matcher is not None
    assert [value for value in valid if not takes(matcher, spelled(value))] == []
    assert [value for value in invalid if takes(matcher, spelled(value))] == []


def test_they_are_left_out() -> None:
    """The library would follow every token through them."""
    every = {"patternProperties": {".*": {"type": "string", "pattern": "^.*"}, "^x": {}}}
    assert prepare(every).schema == {"additionalProperties": {"type": "string"}}
    assert prepare({"patternProperties": {"^x": {}}}).schema == {}
