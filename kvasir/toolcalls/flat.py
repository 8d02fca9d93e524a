"""Arguments that are no JSON: of their schema, properties and which are required."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import Any

MAX_REFERENCES = 8
"""From one definition to the next."""
_DEFINITIONS = ("$defs", "definitions")
_MAPS = ("properties", "patternProperties", *_DEFINITIONS)
_ROOTS = ("#", "#/")
_KNOWN = frozenset(("type", "properties", "required", "additionalProperties", *_DEFINITIONS))


def properties_of(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Of the root of ``schema``, with those that are required and not described: any value; without
    those that are forbidden."""
    found = schema.get("properties")
    described = found if isinstance(found, dict) else {}
    required = schema.get("required")
    others = schema.get("additionalProperties")
    more = others if isinstance(others, dict) else {}
    names = required if isinstance(required, list) else []
    given = described | {name: more for name in names if name not in described}
    return {name: value for name, value in given.items() if value is not False}


def idle_keywords(schema: Mapping[str, Any]) -> list[str]:
    """Those at its root that ask for something else."""
    found = [key for key in schema if key not in _KNOWN]
    if isinstance(schema.get("additionalProperties"), dict):
        found.append("additionalProperties")
    return found


def apart(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """``schema`` whose parts stand for themselves beside its definitions: references to its root,
    if there are any, go to one of them."""
    taken = {name for key in _DEFINITIONS for name in schema.get(key) or ()}
    name = next(name for i in count() if (name := f"root{i or ''}") not in taken)
    moved = _moved(schema, f"#/$defs/{name}", is_map=False)
    if moved == schema:
        return schema
    root = {key: value for key, value in moved.items() if key not in _DEFINITIONS}
    return {**moved, "$defs": {**moved.get("$defs", {}), name: root}}


def _moved(value: Any, place: str, *, is_map: bool) -> Any:
    """A prepared schema, or what it is made of, that says ``place`` for its root. ``is_map``: its
    keys are names."""
    if isinstance(value, list):
        return [_moved(item, place, is_map=False) for item in value]
    if not isinstance(value, Mapping):
        return value
    found = {}
    for key, item in value.items():
        if is_map or key not in ("enum", "const"):
            item = _moved(item, place, is_map=not is_map and key in _MAPS)
        found[key] = place if key == "$ref" and item in _ROOTS and not is_map else item
    return found


def at_root(schema: dict[str, Any]) -> dict[str, Any]:
    """``schema`` with what a reference at its root names, where nothing beside it says the same."""
    for _ in range(MAX_REFERENCES):
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        named = _definition(schema)
        if named is None or set(named) & set(rest) - {"type"}:
            break
        schema = {**rest, **named}
    return schema


def _definition(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    reference = schema.get("$ref")
    root, *place = reference.split("/") if isinstance(reference, str) else ("",)
    if root != "#" or len(place) != 2 or place[0] not in _DEFINITIONS:
        return None
    known = schema.get(place[0])
    name = place[1].replace("%25", "%").replace("~1", "/").replace("~0", "~")
    found = known.get(name) if isinstance(known, dict) else None
    return found if isinstance(found, dict) else None
