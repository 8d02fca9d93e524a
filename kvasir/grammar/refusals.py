"""What the grammar library refuses, said by the keyword that it is about and its place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from kvasir.core.errors import RequestError
from kvasir.grammar.errors import InvalidGrammar, Path, UnsupportedSchema, unsupported

_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_SAID = (
    (re.compile(r"regex parse error|^lookarounds not supported"), ("pattern", "patternProperties")),
    (re.compile(r"^patternProperty regexes"), ("patternProperties",)),
    (re.compile(r"^min/maxProperties"), ("minProperties", "maxProperties")),
    (re.compile(r"regex for (float|integer) range"), _BOUNDS),
    (re.compile(r"^Invalid type"), ("type",)),
)
"""Its words, and the keywords that they can be about."""
_NAMED = re.compile(r"'(\w+)'|^(\w+) must be")
_EMPTY = "Unsatisfiable schema"
_NO_TEXT = "NoExtensionBias"
"""Why the library makes no first mask."""


def refused(reason: str, text: str) -> RequestError:
    """``reason``: the library's; ``text``: the grammar."""
    schema = _schema_in(text)
    if _NO_TEXT in reason:
        what = "grammar" if schema is None else "schema"
        said = "no answer can begin: what must come first matches no text"
        return InvalidGrammar(f"the {what} is refused: {said}")
    if schema is None:
        return InvalidGrammar(f"the grammar is refused: {reason}")
    if reason.startswith(_EMPTY):
        return InvalidGrammar(f"no value is valid against the schema{reason[len(_EMPTY) :]}")
    places = list(_places(schema, _keywords(reason), ()))
    if not places:
        return InvalidGrammar(f"the schema is refused: {reason}")
    keyword = str(places[0][-1])
    if len(places) == 1:
        return unsupported(keyword, places[0], reason)
    return UnsupportedSchema(
        f"the schema's '{keyword}' is not supported, at one of {len(places)} places: {reason}",
        keyword,
    )


def _keywords(reason: str) -> tuple[str, ...]:
    for pattern, keywords in _SAID:
        if pattern.search(reason):
            return keywords
    named = _NAMED.search(reason)
    return (named[1] or named[2],) if named else ()


def _schema_in(text: str) -> Any:
    """That of a grammar which is nothing else; None of others."""
    grammars = json.loads(text)["grammars"]
    return grammars[0].get("json_schema") if len(grammars) == 1 else None


def _places(value: Any, keywords: tuple[str, ...], path: Path) -> Iterator[Path]:
    if isinstance(value, list):
        for i, item in enumerate(value):
            yield from _places(item, keywords, (*path, i))
    elif isinstance(value, dict):
        is_map = bool(path) and path[-1] in ("properties", "patternProperties")
        for name, item in value.items():
            if name in keywords and not is_map:
                yield (*path, name)
            if name not in ("enum", "const"):
                yield from _places(item, keywords, (*path, name))
