"""What a grammar takes is valid for another implementation of JSON Schema."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.grammar.matcher import Matcher
from kvasir.sampling.masks import allows
from tests.byte_grammar import EOS, compiled, spelled, takes
from tests.forms import n_of

NAMES = st.sampled_from(["a", "b", "k"])
VALUES = st.sampled_from([None, True, False, 0, 1, 5, 2.5, "x", "y", "xy", [], [1], {}, {"a": 1}])
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "type": TYPES | st.lists(TYPES, min_size=1, max_size=3, unique=True),
        "enum": st.lists(VALUES, min_size=1, max_size=3),
        "const": VALUES,
        "minimum": st.integers(0, 4),
        "maximum": st.integers(1, 5),
        "maxLength": st.integers(0, 2),
        "maxItems": st.integers(0, 2),
    },
)


def extended(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    few = st.lists(inner, min_size=1, max_size=3)
    names = st.lists(NAMES, max_size=2, unique=True)
    some = st.lists(NAMES, min_size=1, max_size=2, unique=True)
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(NAMES, inner, max_size=3)},
        optional={
            "required": names,
            "additionalProperties": st.booleans(),
            "dependentRequired": st.dictionaries(NAMES, names, max_size=2),
            "dependentSchemas": st.dictionaries(NAMES, inner, max_size=1),
            "propertyNames": st.fixed_dictionaries({"enum": some}),
            "not": st.fixed_dictionaries({"required": some}),
            "oneOf": st.lists(st.fixed_dictionaries({"required": some}), min_size=1, max_size=3),
            "if": st.fixed_dictionaries(
                {"properties": st.dictionaries(NAMES, PLAIN, min_size=1, max_size=1)},
                optional={"required": names},
            ),
            "then": inner,
            "else": inner,
        },
    )
    combined = st.fixed_dictionaries(
        {},
        optional={"type": TYPES, "anyOf": few, "oneOf": few, "allOf": few, "not": inner},
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array")},
        optional={"items": inner, "prefixItems": few, "uniqueItems": st.booleans()},
    )
    return objects | combined | arrays


SCHEMAS = st.recursive(PLAIN | st.booleans(), extended, max_leaves=8)
JSON = st.recursive(
    VALUES, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner), max_leaves=5
)


@settings(max_examples=n_of(200, 600), deadline=None)
@given(SCHEMAS, st.lists(JSON, min_size=1, max_size=6))
def test_what_is_taken_is_valid(schema: Any, values: list[Any]) -> None:
    matcher = compiled(schema)
    if matcher is None:
        return
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        assert not takes(matcher, spelled(value)) or validator.is_valid(value)


@settings(max_examples=n_of(100, 300), deadline=None)
@given(SCHEMAS.filter(lambda schema: isinstance(schema, dict)), st.data())
def test_what_is_written_is_valid(schema: Any, data: st.DataObject) -> None:
    """Texts that the grammar itself leads to, a byte at a time."""
    matcher = compiled(schema)
    if matcher is None:
        return
    text = write(matcher, data)
    if text is not None:
        value = json.loads(text)
        assert jsonschema.Draft202012Validator(schema).is_valid(value), text


def write(matcher: Matcher, data: st.DataObject, most: int = 60) -> str | None:
    """An answer of at most ``most`` bytes, or None."""
    state, said = matcher.copy(), bytearray()
    for _ in range(most):
        bits = np.zeros(9, np.uint32)
        state.fill((), bits)
        if allows(bits, EOS):
            return said.decode()
        # plain bytes, so that texts stay readable and end
        able = [i for i in b'{}[]:,"abkxy0125tfnrueals.' if allows(bits, i)]
        if not able:
            return None
        byte = data.draw(st.sampled_from(able))
        said.append(byte)
        state.consume([byte])
    return None
