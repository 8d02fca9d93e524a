"""Schemas that explode where nothing bounds them."""

from __future__ import annotations

from typing import Any


def nested(n: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(n):
        schema = {"type": "array", "items": schema}
    return schema


INTEGERS = {"type": "array", "items": {"type": "integer"}}
BOMBS: dict[str, tuple[Any, str]] = {
    "enum": ({"enum": [f"k{i}" for i in range(2**16)]}, "invalid_grammar"),
    "optional keys": (
        {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}},
        "unsupported_schema",
    ),
    "itself": ({"$ref": "#"}, "unsupported_schema"),
    "a circle": (
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        "unsupported_schema",
    ),
    "elsewhere": ({"$ref": "http://127.0.0.1:9/schema.json"}, "unsupported_schema"),
    "without an end": (
        {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        "",
    ),
    "depth": (nested(200), "invalid_grammar"),
    "pattern": ({"type": "string", "pattern": "(a|b|c){1,5000}" * 40}, ""),
    "(a+)+b": ({"type": "string", "pattern": "^(a+)+b$"}, ""),
    "(a|a)*c": ({"type": "string", "pattern": "^(a|a)*c$"}, ""),
    "any 100,000": ({"type": "string", "pattern": "^.{1,100000}$"}, ""),
    "10 KB of words": (
        {"type": "string", "pattern": f"^({'|'.join(f'w{i:04}' for i in range(1700))})$"},
        "",
    ),
    "many items": ({**INTEGERS, "maxItems": 10**9}, ""),
    "no fewer items": ({**INTEGERS, "minItems": 10**9}, ""),
    "patterns of names": (
        {"patternProperties": {f"^x{i}.*a{{1,900}}$": {"type": "integer"} for i in range(100)}},
        "unsupported_schema",
    ),
    "one of 100": ({"oneOf": [{"const": i} for i in range(100)]}, ""),
    "alternatives": (
        {"anyOf": [{"type": "object", "properties": {"a": {"$ref": "#"}}}] * 200},
        "invalid_grammar",
    ),
}
"""Each with the code of its refusal; without one it is compiled."""
