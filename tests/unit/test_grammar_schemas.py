"""JSON Schemas: what is kept to, rewritten, warned of and refused."""

from __future__ import annotations

from typing import Any

import pytest

from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.errors import InvalidGrammar, UnsupportedSchema
from kvasir.grammar.limits import LIMITS, GrammarLimits
from kvasir.grammar.schema import prepare
from kvasir.grammar.structured import grammar_of
from kvasir.validation.sampling import StructuredOutputs
from tests.byte_grammar import byte_tokens, compiled, spelled, takes

AB = {"a": {"type": "integer"}, "b": {"type": "integer"}}
OBJECT = {"type": "object", "properties": AB, "additionalProperties": False}
TO_PROPERTIES = [{"$ref": "#/properties/a"}, {"$ref": "#/properties/t"}]
MANY_KINDS = [
    {"type": "object", "properties": {"k": {"const": i}, "b": {}}, "required": ["k"]}
    for i in range(300)
]
KIND = {"type": "object", "properties": {"k": {"enum": ["x", "y"]}, "b": {"type": "integer"}}}
INTEGER = {"type": "integer"}
DRAFT7 = "http://json-schema.org/draft-07/schema#"

CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "dependencies": (
        {**OBJECT, "dependencies": {"a": ["b"]}},
        [{}, {"b": 1}, {"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    "a dependency that always holds": (
        {**OBJECT, "required": ["a"], "dependentRequired": {"a": ["b"]}},
        [{"a": 1, "b": 2}],
        [{"a": 1}, {}],
    ),
    "dependent schemas": (
        {**OBJECT, "dependentSchemas": {"a": {"properties": {"b": {"minimum": 5}}}}},
        [{"b": 1}, {"a": 1}, {"a": 1, "b": 5}],
        [{"a": 1, "b": 4}],
    ),
    "if over a value": (
        {
            **KIND,
            "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
            "then": {"required": ["b"]},
        },
        [{}, {"k": "y"}, {"k": "x", "b": 1}],
        [{"k": "x"}],
    ),
    "if that absence meets": (
        {**KIND, "if": {"properties": {"k": {"const": "x"}}}, "then": {"required": ["b"]}},
        [{"k": "y"}, {"b": 1}, {"k": "x", "b": 1}],
        [{"k": "x"}, {}],
    ),
    "if of another type": (
        {
            **KIND,
            "required": ["k"],
            "if": {"properties": {"k": {"const": "x", "type": "integer"}}},
            "then": {},
            "else": {"required": ["b"]},
        },
        [{"k": "x", "b": 1}],
        [{"k": "x"}],
    ),
    "else": (
        {
            **KIND,
            "required": ["k"],
            "if": {"properties": {"k": {"const": "x"}}, "required": ["k"]},
            "then": {"required": ["b"]},
            "else": {"properties": {"b": False}},
        },
        [{"k": "x", "b": 1}, {"k": "y"}],
        [{"k": "x"}, {"k": "y", "b": 1}, {}],
    ),
    "then without if": ({"type": "integer", "then": {"minimum": 5}}, [1], ["1"]),
    "oneOf by type": ({"oneOf": [{"type": "string"}, {"type": "null"}]}, ["a", None], [1]),
    "oneOf by a value": (
        {
            "oneOf": [
                {"type": "object", "properties": {"k": {"const": k}}, "required": ["k"]}
                for k in ("x", "y")
            ]
        },
        [{"k": "x"}, {"k": "y"}],
        [{}, {"k": "z"}],
    ),
    "oneOf by presence": (
        {**OBJECT, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": 1}, {"b": 1}],
        [{}, {"a": 1, "b": 1}],
    ),
    "oneOf by range": (
        {"oneOf": [{"type": "integer", "maximum": 3}, {"type": "integer", "minimum": 4}]},
        [3, 4],
        ["3"],
    ),
    "not a type": ({"type": ["string", "integer"], "not": {"type": "string"}}, [1], ["a"]),
    "not a value": ({"enum": ["a", "b"], "not": {"const": "a"}}, ["b"], ["a"]),
    "not there": ({**OBJECT, "not": {"required": ["a"]}}, [{"b": 1}, {}], [{"a": 1}]),
    "names by pattern": (
        {"type": "object", "propertyNames": {"pattern": "^x"}},
        [{}, {"xy": 1}],
        [{"y": 1}],
    ),
    "names by list": (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}},
        [{}, {"a": 1}],
        [{"c": 1}],
    ),
    "items as a list": (
        {
            "$schema": DRAFT7,
            "type": "array",
            "items": [{"type": "integer"}],
            "additionalItems": False,
        },
        [[], [1]],
        [[1, 2], ["a"]],
    ),
    "nothing beside an old reference": (
        {
            "$schema": DRAFT7,
            "definitions": {"a": {"type": "integer"}},
            "$ref": "#/definitions/a",
            "maximum": 3,
        },
        [9],
        ["a"],
    ),
    "a new reference with a bound": (
        {"$defs": {"a": {"type": "integer"}}, "$ref": "#/$defs/a", "maximum": 3},
        [3],
        [4],
    ),
    "an old open bound": ({"type": "integer", "minimum": 5, "exclusiveMinimum": True}, [6], [5]),
    "an open bound, another far off": (
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        [0.5, 1],
        [0, 1.5],
    ),
    "an open bound of whole numbers alone": (
        {
            "properties": {"a": {"type": "integer", "exclusiveMinimum": 0, "maximum": 0.5}},
            "type": "object",
            "additionalProperties": False,
        },
        [{}],
        [{"a": 0}, {"a": 1}],
    ),
    "many alternatives and their discriminator": (
        {"oneOf": [{"$ref": f"#/kinds/{i}"} for i in range(300)], "kinds": MANY_KINDS},
        [{"k": 0}, {"k": 299, "b": 1}],
        [{"k": 300}, {"b": 1}, 1],
    ),
    "a constant that is not listed": (
        {"items": {"const": "a", "enum": ["b"], "not": {"const": 1}}, "type": "array"},
        [[]],
        [["a"], ["b"]],
    ),
    "alternatives elsewhere in the schema": (
        {
            "type": "object",
            "properties": {**AB, "t": {"type": "string"}, "x": {"oneOf": TO_PROPERTIES}},
        },
        [{"x": 1}, {"x": "y"}],
        [{"x": None}],
    ),
    "sizes as 2.0": ({"type": "string", "maxLength": 2.0}, ["ab"], ["abc"]),
    "a reference to where no schema is kept": (
        {
            "properties": {"a": {"$ref": "#/kinds/whole"}},
            "required": ["a"],
            "kinds": {"whole": {"type": "integer", "not": False}, "more": {}},
        },
        [{"a": 1}],
        [{"a": "x"}],
    ),
    "a reference to a part that is rewritten": (
        {
            "type": "object",
            "properties": {
                "a": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
                "b": {"$ref": "#/properties/a/oneOf/0"},
            },
            "$defs": {"at0": {"type": "string"}},
        },
        [{"a": None, "b": 1}],
        [{"b": None}],
    ),
    "a reference in a circle": (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#/kinds/list"}},
            "kinds": {"list": {"type": "array", "items": {"$ref": "#/kinds/list"}}},
        },
        [{"a": [[], [[]]]}],
        [{"a": [1]}],
    ),
    "at least one of a few": (
        {**OBJECT, "minProperties": 1},
        [{"a": 1}, {"b": 1}, {"a": 1, "b": 1}],
        [{}],
    ),
    "at least one more": (
        {**OBJECT, "required": ["b"], "minProperties": 2},
        [{"a": 1, "b": 1}],
        [{"b": 1}, {"a": 1}],
    ),
    "at least what is required": (
        {"type": "object", "required": ["a", "b"], "minProperties": 2},
        [{"a": 1, "b": 1}],
        [{"a": 1}],
    ),
    "no uniqueness": ({"type": "array", "uniqueItems": False}, [[1, 1]], [1]),
    "unique, of one": ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[1]], [[1, 1]]),
    "contains nothing": ({"type": "array", "contains": {"const": 1}, "minContains": 0}, [[2]], [2]),
}


@pytest.mark.parametrize("case", CASES)
def test_exact(case: str) -> None:
    schema, valid, invalid = CASES[case]
    matcher = compiled(schema)
    assert matcher is not None
    assert [value for value in valid if not takes(matcher, spelled(value))] == []
    assert [value for value in invalid if takes(matcher, spelled(value))] == []


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
        ({"properties": {"a/b": {"not": {"minimum": 3}}}}, "#/properties/a~1b/not"),
        ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf"),
        (
            {
                "oneOf": [
                    {"type": "object", "properties": {"k": {"enum": own}}, "required": ["k"]}
                    for own in ([1, 2], [2.0, 3])
                ]
            },
            "#/oneOf",
        ),
        (
            {"oneOf": [{"properties": {"k": {"const": i}}, "required": ["k"]} for i in (1, 2)]},
            "#/oneOf",
        ),
        ({"type": "array", "contains": {"const": 1}}, "#/contains"),
        ({"if": {"minimum": 3}, "then": {"maximum": 5}}, "#/if"),
        (
            {**KIND, "if": {"type": "array", "properties": {"k": {"const": "x"}}}, "then": False},
            "#/if",
        ),
        ({"$ref": "https://example.com/schema"}, "#/$ref"),
        ({"$ref": "#/$defs/none"}, "#/$ref"),
        ({"unevaluatedProperties": False}, "#/unevaluatedProperties"),
        ({"properties": {"a": {"type": "number", "maximum": 2**64}}}, "#/properties/a/maximum"),
        (
            {"type": "number", "exclusiveMinimum": 0, "maximum": 0.5},
            "#/exclusiveMinimum",
        ),
        ({"minimum": -1.5, "allOf": [{"exclusiveMaximum": -1}]}, "#/exclusiveMaximum"),
        ({"anyOf": [{"maximum": 3.5}], "exclusiveMinimum": 3.0}, "#/exclusiveMinimum"),
        ({"items": {"$ref": "#/$defs/x"}, "$defs": {"x": {"$ref": "#/$defs/x"}}}, "#/items/$ref"),
        ({"multipleOf": 12345678899999998, "type": "integer"}, "#/multipleOf"),
        ({"items": {"type": "string", "pattern": "(?=a)"}, "type": "array"}, "#/items/pattern"),
        ({"type": "object", "minProperties": 3}, "#/minProperties"),
        ({"patternProperties": {"a": INTEGER, "b": INTEGER}}, "#/patternProperties"),
    ],
)
def test_refused_with_its_place(schema: Any, place: str) -> None:
    with pytest.raises(UnsupportedSchema) as caught:
        byte_tokens().compile(schema_grammar(schema).text)
    assert caught.value.code == "unsupported_schema"
    assert f"'{caught.value.keyword}' at {place} is not supported" in caught.value.message


def test_unknown_formats_are_annotations() -> None:
    prepared = prepare({"type": "string", "format": "big-integer"})
    assert prepared.schema == {"type": "string"}
    assert prepared.warnings == ("the format 'big-integer' at # is not checked",)
    assert prepare({"format": "date"}).warnings == ()
    assert prepare({"format": {"a": 1}}).schema == {}


def test_misspelled_keywords() -> None:
    schema = {"type": "object", "propertes": {"a": {}}, "x-order": 3}
    said = "#/propertes is no keyword and was ignored: did you mean 'properties'?"
    assert prepare(schema).warnings == (said,)
    with pytest.raises(UnsupportedSchema, match="did you mean 'properties'"):
        prepare(schema, strict=True)


def test_warnings_are_counted() -> None:
    schema = {"properties": {f"p{i}": {"format": f"f{i}"} for i in range(40)}}
    assert prepare(schema).warnings[-1] == "and 24 more of the schema"


def test_blanks_are_bounded() -> None:
    free = schema_grammar({"type": "object"})
    assert takes(free, "{" + " " * 40 + "}")
    assert not takes(free, "{" + " " * 41 + "}")
    assert not takes(schema_grammar({"type": "object"}, spaces=None), "{ }")


def test_closed_objects() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "object", "properties": {}}}}
    open_, closed = schema_grammar(schema), schema_grammar(schema, is_closed=True)
    assert takes(open_, '{"b":1}') and not takes(closed, '{"b":1}')
    assert not takes(closed, '{"a":{"b":1}}')


def nested(depth: int) -> Any:
    return {"items": nested(depth - 1)} if depth else {}


def test_bounds() -> None:
    prepare(nested(LIMITS.depth))
    with pytest.raises(InvalidGrammar, match=f"{LIMITS.depth} at most"):
        prepare(nested(LIMITS.depth + 1))
    with pytest.raises(InvalidGrammar, match=f"more than {LIMITS.n_values} values"):
        prepare({"enum": list(range(LIMITS.n_values + 1))})
    with pytest.raises(InvalidGrammar, match="1048576 at most"):
        schema_grammar({"const": "a" * 2**20})
    with pytest.raises(InvalidGrammar, match="2772484 bytes, 1048576 at most"):
        schema_grammar({"enum": [f"k{i}" for i in range(2**18)]})
    few = GrammarLimits(n_bytes=40, depth=2, n_values=2)
    with pytest.raises(InvalidGrammar, match="2 at most"):
        prepare(nested(3), limits=few)
    with pytest.raises(InvalidGrammar, match="more than 2 values"):
        schema_grammar({"enum": [1, 2, 3]}, limits=few)
    with pytest.raises(InvalidGrammar, match="40 at most"):
        schema_grammar({"const": "a" * 40}, limits=few)
    for asked in (
        StructuredOutputs(regex="a" * 41),
        StructuredOutputs(choice=["a", "b", "c"]),
        StructuredOutputs(grammar='start: "a" ' * 5),
        StructuredOutputs(json={"enum": [1, 2, 3]}),
    ):
        grammar_of(asked)
        with pytest.raises(InvalidGrammar):
            grammar_of(asked, few)
    with pytest.raises(UnsupportedSchema, match="too many alternatives"):
        prepare({"dependentRequired": {f"p{i}": ["q"] for i in range(7)}})


@pytest.mark.parametrize(
    "odd",
    [
        *({key: 5} for key in ("oneOf", "allOf", "anyOf", "dependencies", "dependentRequired")),
        {"type": 5},
        {"type": {}},
        {"type": [[]]},
        {"type": [{}]},
        {"minProperties": "2"},
        {"$defs": 5, "properties": {"a": {"$ref": "#/properties/b"}, "b": {}}},
    ],
)
@pytest.mark.parametrize("beside", [{}, {"properties": {"a": {"enum": [1]}}, "uniqueItems": True}])
def test_what_is_no_schema_is_refused(odd: Any, beside: Any) -> None:
    with pytest.raises(InvalidGrammar):
        prepare({**beside, **odd})
    with pytest.raises(InvalidGrammar):
        prepare({"items": {**beside, **odd}})


def test_a_user_does_not_say_what_blanks_are() -> None:
    made = schema_grammar({"type": "object", "x-guidance": {"whitespace_pattern": "a*"}})
    assert not takes(made, "{aaa}")


def test_one_of_several_places() -> None:
    twice = {"properties": {"a": {"type": "string", "pattern": "(?=a)"}}}
    twice["properties"]["b"] = twice["properties"]["a"]
    with pytest.raises(UnsupportedSchema, match="'pattern' is not supported, at one of 2 places"):
        byte_tokens().compile(schema_grammar(twice).text)


def test_what_has_no_instance_says_so() -> None:
    with pytest.raises(InvalidGrammar, match="no value is valid against the schema"):
        byte_tokens().compile(
            schema_grammar({"type": "string", "minLength": 2, "maxLength": 1}).text
        )
