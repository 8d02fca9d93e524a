"""Whether two JSON schemas can be shown to share no instance.

Says yes only where that is certain. Schemas are JSON values as ``json`` reads them; references are
followed inside the document, a few deep.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any

Schema = Any

TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
"""``integer`` here is a number without fraction, ``number`` one with it."""
MAX_DEPTH = 6
"""Of references and alternatives that are followed."""
MAX_COMPARED = 200_000
"""Pairs of schemas, and schemas on the way to them: most of a second."""
_RANGES = {
    "string": ("minLength", "maxLength"),
    "array": ("minItems", "maxItems"),
    "object": ("minProperties", "maxProperties"),
}


@dataclass(slots=True)
class SearchEffort:
    """That may still be taken, by all schemas of a request together."""

    n_left: int


@dataclass(slots=True)
class SchemaSearch:
    """In one document. What it has no time for is not certain."""

    resolve: Callable[[str], Schema]
    """Finds what a local $ref names."""
    effort: SearchEffort

    def goes_on(self) -> bool:
        self.effort.n_left -= 1
        return self.effort.n_left >= 0


def disjoint(one: Schema, other: Schema, search: SchemaSearch, depth: int = MAX_DEPTH) -> bool:
    """Whether no instance is valid against both."""
    if depth == 0:
        return False
    lefts, rights = conjuncts(one, search, depth), conjuncts(other, search, depth)
    pairs = takewhile(lambda pair: search.effort.n_left > 0, product(lefts, rights))
    return any(_disjoint(a, b, search, depth - 1) for a, b in pairs)


def has_discriminator(schemas: Sequence[Schema], search: SchemaSearch) -> bool:
    """Whether ``schemas`` are of objects that one property tells apart: each requires it, with
    values of its own. The time for it grows with their number, not with that of their pairs."""
    parts = [conjuncts(one, search, MAX_DEPTH) for one in schemas]
    if not all(frozenset.intersection(*map(types_of, own)) <= {"object"} for own in parts):
        return False
    needed = [{name for part in own for name in required(part)} for own in parts]
    return any(_tells_apart(name, parts) for name in sorted(set.intersection(*needed)))


def _tells_apart(name: str, parts: Sequence[Sequence[Schema]]) -> bool:
    seen: set[str] = set()
    for own in parts:
        known = (values_of(property_of(part, name)) for part in own)
        values = next((found for found in known if found is not None), None)
        keys = {key_of(value) for value in values or ()}
        if values is None or keys & seen:
            return False
        seen |= keys
    return True


def key_of(value: object) -> str:
    """Equal for JSON values that are equal: 1 and 1.0 are, 1 and true are not."""
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def type_of(value: object) -> str:
    """Of a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, (int, float)):
        return "integer" if isinstance(value, int) or value.is_integer() else "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def types_of(schema: Schema) -> frozenset[str]:
    """That its ``type``, ``const`` and ``enum`` leave."""
    if schema is False:
        return frozenset()
    if not isinstance(schema, dict):
        return TYPES
    values = values_of(schema)
    return _named_types(schema) if values is None else frozenset(map(type_of, values))


def _named_types(schema: dict[str, Any]) -> frozenset[str]:
    if "type" not in schema:
        return TYPES
    said = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return TYPES & {*said, *(("integer",) if "number" in said else ())}


def values_of(schema: Schema) -> list[Any] | None:
    """Those that ``const`` and ``enum`` leave, of its types; None without either."""
    if not isinstance(schema, dict):
        return None
    values = schema.get("enum")
    if "const" in schema:
        listed = [key_of(value) for value in values] if isinstance(values, list) else None
        is_listed = listed is None or key_of(schema["const"]) in listed
        values = [schema["const"]] if is_listed else []
    if not isinstance(values, list):
        return [False, True] if schema.get("type") == "boolean" else None
    types = _named_types(schema)
    return [value for value in values if type_of(value) in types]


def conjuncts(schema: Schema, search: SchemaSearch, depth: int) -> list[Schema]:
    """Schemas all of which an instance must meet."""
    found = [schema]
    if isinstance(schema, dict) and depth > 0 and search.goes_on():
        if isinstance(schema.get("$ref"), str):
            found += conjuncts(search.resolve(schema["$ref"]), search, depth - 1)
        for part in schema.get("allOf") or ():
            found += conjuncts(part, search, depth - 1)
    return found


def _disjoint(a: Schema, b: Schema, search: SchemaSearch, depth: int) -> bool:
    if not search.goes_on():
        return False
    shared = types_of(a) & types_of(b)
    if not shared:
        return True
    if not isinstance(a, dict) or not isinstance(b, dict):
        return False
    mine, yours = values_of(a), values_of(b)
    if mine is not None and yours is not None:
        return not {key_of(x) for x in mine} & {key_of(x) for x in yours}
    for one, other in ((a, b), (b, a)):
        for kind in ("anyOf", "oneOf"):
            if one.get(kind) and all(disjoint(x, other, search, depth) for x in one[kind]):
                return True
    return all(_disjoint_as(kind, a, b, search, depth) for kind in shared)


def _disjoint_as(kind: str, a: Schema, b: Schema, search: SchemaSearch, depth: int) -> bool:
    """Whether no instance of the type ``kind`` is valid against both."""
    if kind in ("integer", "number"):
        return _above(a, b) or _above(b, a)
    least, most = _RANGES.get(kind, ("", ""))
    if _is_less(a.get(most), b.get(least)) or _is_less(b.get(most), a.get(least)):
        return True
    if kind != "object":
        return False
    return any(_objects(one, other, search, depth) for one, other in ((a, b), (b, a)))


def _objects(a: Schema, b: Schema, search: SchemaSearch, depth: int) -> bool:
    """Whether ``a`` requires a property that ``b`` forbids, or both require it and disagree."""
    needed = set(required(b))
    for name in required(a):
        theirs = property_of(b, name)
        if theirs is False:
            return True
        if name in needed and disjoint(property_of(a, name), theirs, search, depth):
            return True
    return False


def required(schema: Schema) -> list[str]:
    names = schema.get("required") if isinstance(schema, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def property_of(schema: Schema, name: str) -> Schema:
    """What ``schema`` asks of the property; True where that is not certain."""
    if not isinstance(schema, dict):
        return schema is not False
    properties = schema.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    if schema.get("patternProperties"):
        return True
    return schema.get("additionalProperties") is not False


def _above(a: Schema, b: Schema) -> bool:
    """Whether every number of ``a`` is larger than those of ``b``."""
    for low, is_open in _bounds(a, "minimum", "exclusiveMinimum"):
        for high, is_other_open in _bounds(b, "maximum", "exclusiveMaximum"):
            if low > high or (low == high and (is_open or is_other_open)):
                return True
    return False


def _bounds(schema: Schema, closed: str, opened: str) -> Iterator[tuple[float, bool]]:
    for name in (closed, opened):
        value = schema.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield value, name == opened


def _is_less(low: object, high: object) -> bool:
    return isinstance(low, (int, float)) and isinstance(high, (int, float)) and low < high
