"""Arguments that are no JSON: of their schema, properties and which are required."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MAX_REFERENCES = 8
"""From one definition to the next."""
_DEFINITIONS = ("$defs", "definitions")
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
