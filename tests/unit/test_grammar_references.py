"""References of a schema that lead back to themselves, and those that only seem to."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.errors import UnsupportedSchema
from kvasir.grammar.schema import prepare
from tests.byte_grammar import compiled


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"allOf": [{"$ref": "#"}, {"type": "integer"}]}, "#/allOf/0/$ref"),
        ({"anyOf": [{"$ref": "#"}]}, "#/anyOf/0/$ref"),
        (
            {"properties": {"a": {"allOf": [{"allOf": [{"$ref": "#/properties/a"}]}]}}},
            "#/properties/a/allOf/0/allOf/0/$ref",
        ),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {
                    "a": {"allOf": [True, {"$ref": "#/$defs/b"}]},
                    "b": {"oneOf": [{"$ref": "#/$defs/a"}]},
                },
            },
            "#/$ref",
        ),
    ],
)
def test_a_circle_with_nothing_of_the_value_in_between(schema: Any, place: str) -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        schema_grammar(schema)
    assert f"'$ref' at {place} is not supported" in caught.value.message


def test_references_that_meet_again_behind_a_value() -> None:
    """Half of the way is that of a circle; a chain is as long as a schema may be."""
    both = {"allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}
    holder = {"type": "object", "properties": {"b": {"allOf": [{"$ref": "#"}]}}}
    assert compiled({**holder, "$defs": {}}) is not None
    assert compiled({**both, "$defs": {"a": {"type": "integer"}}}) is not None
    names = [f"n{i}" for i in range(3000)]
    chain = {a: {"allOf": [{"$ref": f"#/$defs/{b}"}]} for a, b in pairwise(names)}
    found = prepare({"$ref": "#/$defs/n0", "$defs": {**chain, names[-1]: {"type": "null"}}})
    assert found.schema["$ref"] == "#/$defs/n0"
