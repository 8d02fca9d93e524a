"""Keywords of JSON Schema that the grammar library lacks, said with others that it has.

Each rewrite is exact: the same instances are valid before and after. What cannot be said exactly
is refused with its keyword and place.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import msgspec

from kvasir.grammar.disjoint import (
    Schema,
    SchemaSearch,
    disjoint,
    has_discriminator,
    key_of,
    property_of,
    required,
    types_of,
    values_of,
)
from kvasir.grammar.errors import Path, UnsupportedSchema, unsupported
from kvasir.grammar.patterns import EVERY

MAX_BRANCHES = 64
"""Alternatives that one rewrite may make: each is a copy of what stands beside it."""


class SchemaPlace(msgspec.Struct, frozen=True):
    """Of a schema in its document."""

    path: Path
    search: SchemaSearch

    def refuse(self, keyword: str, why: str) -> UnsupportedSchema:
        return unsupported(keyword, (*self.path, keyword), why)


def rewrite(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """``schema`` in keywords that the library has. Its subschemas are rewritten already. Raises
    UnsupportedSchema."""
    for keyword, act in _REWRITES.items():
        if keyword in schema:
            schema = act(schema, place)
    return _names_first(schema)


def _names_first(schema: dict[str, Any]) -> dict[str, Any]:
    """What is said of names that are not listed stands before alternatives: of two parts the
    library keeps the names of the first, and loses those that patterns of the second take."""
    names = ("patternProperties", "additionalProperties")
    if names[0] not in schema:
        return schema
    return {key: schema[key] for key in names if key in schema} | _without(schema, *names)


def _patterns_of_names(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """What is said of a pattern that every name has is said of all properties; a pattern of which
    nothing is said says nothing where other names are free, too."""
    found = schema["patternProperties"]
    if not isinstance(found, dict):
        return schema
    if _is_free(schema.get("additionalProperties", True)):
        found = {name: said for name, said in found.items() if not _is_free(said)}
    every = [name for name in found if name in EVERY]
    if len(every) == 1:
        said, others = found[every[0]], _without(found, *every)
        if _is_free(said) or not (others or schema.get("properties")):
            schema, found = {**schema, "additionalProperties": said}, others
    if not found:
        return _without(schema, "patternProperties")
    return {**schema, "patternProperties": found}


def _is_free(schema: Schema) -> bool:
    return schema is True or schema == {}


def _without(schema: dict[str, Any], *keywords: str) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key not in keywords}


def _and(schema: dict[str, Any], *others: Schema) -> dict[str, Any]:
    """What is valid against ``schema`` and against all ``others``."""
    others = tuple(other for other in others if not _is_free(other))
    return {**schema, "allOf": [*schema.get("allOf", ()), *others]} if others else schema


def _dependencies(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """``dependencies`` of drafts up to 7, ``dependentRequired`` and ``dependentSchemas``."""
    keywords = ("dependencies", "dependentRequired", "dependentSchemas")
    found = [(name, then) for key in keywords for name, then in dict(schema.get(key) or {}).items()]
    if 2 ** len(found) > MAX_BRANCHES:
        keyword = next(key for key in keywords if key in schema)
        raise place.refuse(keyword, f"{len(found)} dependencies are too many alternatives")
    rest = _without(schema, *keywords)
    for name, then in found:
        needed = {"required": then} if isinstance(then, list) else then
        if needed == {"required": []} or needed is True:
            continue
        if name in required(rest) and types_of(rest) <= {"object"}:
            rest = _and(rest, needed)
            continue
        rest = _and(rest, {"anyOf": [_forbidding([name]), _both(needed, {"required": [name]})]})
    return rest


def _both(one: Schema, other: dict[str, Any]) -> Schema:
    if one is False:
        return False
    return other if one is True else {"allOf": [one, other]}


def _forbidding(names: list[str]) -> dict[str, Any]:
    return {"properties": {name: False for name in names}}


def _if(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """Where the condition is that one property of few known values has some of them."""
    condition, rest = schema["if"], _without(schema, "if", "then", "else")
    then, other = schema.get("then", True), schema.get("else", True)
    if then is True and other is True:
        return rest
    if isinstance(condition, bool):
        return _and(rest, then if condition else other)
    name, yes, no = _split(condition, rest, place)
    met: dict[str, Any] = {"properties": {name: {"enum": yes} if yes else False}}
    unmet = {"properties": {name: {"enum": no}}, "required": [name]}
    if name in required(condition):
        met = {**met, "required": [name]}
        branches = [_both(then, met), _both(other, _forbidding([name])), _both(other, unmet)]
        if name in required(rest):
            del branches[1]
    else:
        branches = [_both(then, met), _both(other, unmet)]
    if not no:
        branches.pop()
    return _and(rest, {"anyOf": branches})


def _split(
    condition: Schema, rest: dict[str, Any], place: SchemaPlace
) -> tuple[str, list[Any], list[Any]]:
    """The property that ``condition`` is about, its values that meet it and those that do not."""
    known = {"properties", "required", "type"}
    named = condition.get("properties") if isinstance(condition, dict) else None
    if not isinstance(named, dict) or len(named) != 1 or set(condition) - known:
        raise place.refuse("if", "only a condition on the value of one property can be kept to")
    name, wanted = next(iter(named.items()))
    is_object = types_of(rest) <= {"object"} <= types_of(condition)
    if set(required(condition)) - {name} or not is_object:
        raise place.refuse("if", "the condition must be about one property of an object")
    all_values = values_of(property_of(rest, name))
    values = values_of(wanted)
    if all_values is None or values is None or set(wanted) - {"const", "enum", "type"}:
        raise place.refuse("if", f"the values of '{name}' are not all known")
    meeting = {key_of(value) for value in values}
    yes = [value for value in all_values if key_of(value) in meeting]
    return name, yes, [value for value in all_values if key_of(value) not in meeting]


def _one_of(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """Alternatives that exclude each other are those of ``anyOf``."""
    branches = [branch for branch in schema["oneOf"] if branch is not False]
    rest = _without(schema, "oneOf")
    if len(branches) == 1:
        return _and(rest, branches[0])
    if _exclude_each_other(branches, rest, place.search):
        return _any_of(rest, branches)
    told_apart = _by_presence(branches, rest)
    if told_apart is None:
        raise place.refuse("oneOf", "its alternatives may hold at once; use anyOf")
    return _any_of(rest, told_apart)


def _exclude_each_other(branches: list[Schema], rest: dict[str, Any], search: SchemaSearch) -> bool:
    values = [values_of(branch) for branch in branches]
    keys = [key for found in values for key in {key_of(value) for value in found or ()}]
    if None not in values and len(set(keys)) == len(keys):
        return True
    whole = [_both(branch, rest) for branch in branches]
    if has_discriminator(whole, search):
        return True
    return all(disjoint(a, b, search) for a, b in combinations(whole, 2))


def _any_of(rest: dict[str, Any], branches: list[Schema]) -> dict[str, Any]:
    if "anyOf" in rest:
        return _and(rest, {"anyOf": branches})
    return {**rest, "anyOf": branches}


def _by_presence(branches: list[Schema], rest: dict[str, Any]) -> list[Schema] | None:
    """Alternatives that say nothing but which property must be there, told apart by the absence of
    the others'."""
    names = [required(branch) for branch in branches]
    if len(branches) > MAX_BRANCHES:
        return None
    if any(set(branch) - {"required", "type"} for branch in branches if isinstance(branch, dict)):
        return None
    if any(len(own) != 1 for own in names) or not types_of(rest) <= {"object"}:
        return None
    if len({own[0] for own in names}) != len(names):
        return None
    return [
        {**branch, **_forbidding([other[0] for other in names if other != own])}
        for branch, own in zip(branches, names, strict=True)
    ]


def _not(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """The opposite of types, of values where all are known, and of one property's presence."""
    denied, rest = schema["not"], _without(schema, "not")
    if denied is False:
        return rest
    if denied is True or denied == {}:
        return {**rest, "enum": []}
    if not isinstance(denied, dict):
        raise place.refuse("not", "it is no schema")
    values, all_values = values_of(denied), values_of(rest)
    if values is not None and not set(denied) - {"const", "enum", "type"}:
        refused = {key_of(value) for value in values}
        if all_values is not None:
            left = [value for value in all_values if key_of(value) not in refused]
            return {**_without(rest, "const"), "enum": left}
    if set(denied) == {"type"}:
        return {**rest, "type": _types_left(denied, rest, place)}
    names = required(denied)
    if set(denied) == {"required"} and len(names) == 1 and types_of(rest) <= {"object"}:
        return _and(rest, _forbidding(names))
    raise place.refuse("not", "only types, known values and one property's absence can be said")


def _types_left(denied: Schema, rest: dict[str, Any], place: SchemaPlace) -> list[str]:
    left = types_of(rest) - types_of(denied)
    if "number" in left and "integer" not in left:
        raise place.refuse("not", "numbers that are not whole cannot be said")
    return sorted(left - ({"integer"} if "number" in left else set()))


def _property_names(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """Where no other names are given: a pattern, or a list of names."""
    names, rest = schema["propertyNames"], _without(schema, "propertyNames")
    if names is True or names == {} or names == {"type": "string"}:
        return rest
    if rest.get("patternProperties") or not isinstance(names, dict):
        raise place.refuse("propertyNames", "it does not go together with patternProperties")
    others = rest.get("additionalProperties", True)
    plain = _without(names, "type")
    allowed = values_of(plain)
    given = dict(rest.get("properties") or {})
    if allowed is not None and set(plain) <= {"const", "enum"}:
        own = {name: given.get(name, others) for name in allowed if isinstance(name, str)}
        return {**rest, "properties": own, "additionalProperties": False}
    if set(plain) == {"pattern"} and not given:
        return {
            **rest,
            "patternProperties": {plain["pattern"]: others},
            "additionalProperties": False,
        }
    raise place.refuse("propertyNames", "only a pattern or a list of names can be kept to")


def _unique(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    if schema["uniqueItems"] is False or schema.get("maxItems", 2) in (0, 1):
        return _without(schema, "uniqueItems")
    if "array" not in types_of(schema):
        return _without(schema, "uniqueItems")
    raise place.refuse("uniqueItems", "what came before cannot be compared")


def _array_items(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """``items`` as a list, of drafts before 2020-12."""
    if not isinstance(schema["items"], list):
        return _without(schema, "additionalItems")
    rest = _without(schema, "items", "additionalItems")
    more = {"items": schema["additionalItems"]} if "additionalItems" in schema else {}
    return {**rest, "prefixItems": schema["items"], **more}


def _least(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    """``minProperties``: those that are required, and one more."""
    needed = set(required(schema))
    n_more = schema["minProperties"] - len(needed)
    rest = _without(schema, "minProperties")
    if n_more <= 0 or "object" not in types_of(schema):
        return rest
    if n_more > 1:
        raise place.refuse("minProperties", "names that are not listed may be the same ones")
    names = [name for name in rest.get("properties") or () if name not in needed]
    if not names or rest.get("patternProperties") or rest.get("additionalProperties") is not False:
        return schema
    if types_of(rest) != {"object"} or len(names) > MAX_BRANCHES:
        raise place.refuse("minProperties", "say which properties are required")
    branches = [
        {**_forbidding(names[:i]), "required": [name]} if i else {"required": [name]}
        for i, name in enumerate(names)
    ]
    return _and(rest, {"anyOf": branches})


def _refuse(keyword: str, why: str) -> Callable[[dict[str, Any], SchemaPlace], dict[str, Any]]:
    def act(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
        raise place.refuse(keyword, why)

    return act


def _contains(schema: dict[str, Any], place: SchemaPlace) -> dict[str, Any]:
    if schema.get("minContains") == 0 and "maxContains" not in schema:
        return _without(schema, "contains", "minContains")
    if "array" not in types_of(schema):
        return _without(schema, "contains", "minContains", "maxContains")
    raise place.refuse("contains", "items cannot be counted by what they are")


_REWRITES: dict[str, Callable[[dict[str, Any], SchemaPlace], dict[str, Any]]] = {
    "patternProperties": _patterns_of_names,
    "uniqueItems": _unique,
    "items": _array_items,
    "contains": _contains,
    "propertyNames": _property_names,
    "dependencies": _dependencies,
    "dependentRequired": _dependencies,
    "dependentSchemas": _dependencies,
    "if": _if,
    "not": _not,
    "oneOf": _one_of,
    "minProperties": _least,
    "unevaluatedProperties": _refuse("unevaluatedProperties", "say additionalProperties"),
    "unevaluatedItems": _refuse("unevaluatedItems", "say items"),
    "$dynamicRef": _refuse("$dynamicRef", "say $ref"),
    "$recursiveRef": _refuse("$recursiveRef", "say $ref"),
}
