"""Schemas whose parts are not what they look like."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.disjoint import MAX_COMPARED
from kvasir.grammar.errors import UnsupportedSchema
from kvasir.grammar.schema import SearchEfforts, prepare
from kvasir.grammar.tags import tag_grammar
from tests.byte_grammar import compiled, takes


@pytest.mark.parametrize(
    "odd",
    [
        {"oneOf": [{"required": ["a"], "allOf": [False]}, {"type": "object", "required": ["a"]}]},
        {"type": "number", "exclusiveMinimum": 10**400},
        {"properties": 64, "minProperties": 1},
        {"properties": [[1]], "propertyNames": {"const": "a"}},
        {"propertyNames": {"pattern": [1]}},
    ],
)
def test_odd_schemas_are_refused_or_read(odd: dict[str, Any]) -> None:
    compiled({**odd, "type": odd.get("type", "object")})


def test_a_property_has_the_name_of_a_keyword() -> None:
    """What stands beside a $ref of an old draft does not count there, too."""
    old = "http://json-schema.org/draft-07/schema#"
    whole = {"definitions": {"x": {"type": "integer"}}, "$schema": old, "type": "object"}
    for name in ("default", "const", "enum", "examples"):
        part = {name: {"$ref": "#/definitions/x", "type": "string"}}
        assert takes(schema_grammar({**whole, "properties": part}), f'{{"{name}":1}}')


LENGTHS = {"oneOf": [{"type": "string", "minLength": 2 * n, "maxLength": 2 * n} for n in range(60)]}
"""Pairs of its branches have to be compared: there is no property that tells them apart."""


def test_all_schemas_of_a_request_have_one_effort_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    efforts = SearchEfforts()
    prepare(LENGTHS, efforts=efforts)
    taken = MAX_COMPARED - efforts.compared.n_left
    assert taken > len(LENGTHS["oneOf"])
    monkeypatch.setattr("kvasir.grammar.schema.MAX_COMPARED", 2 * taken)
    tag = {"type": "json_schema", "json_schema": LENGTHS}
    tag_grammar({"format": {"type": "sequence", "elements": [tag, tag]}})
    with pytest.raises(UnsupportedSchema, match="oneOf"):
        tag_grammar({"format": {"type": "sequence", "elements": [tag, tag, tag]}})
