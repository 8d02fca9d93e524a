"""How many properties of an object may come next: the library follows so many at one place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from kvasir.core.errors import RequestError
from kvasir.grammar.disjoint import Schema

MAX_OPTIONAL = 490
"""Optional properties that may follow at one place. The library has four items for each, and
2,000 at most; each step looks at all of them."""
MAX_DEPTH = 60
"""Of alternatives and references that are followed."""
_ALTERNATIVES = ("allOf", "anyOf", "oneOf")


class Widths:
    """Of the schemas in one document."""

    def __init__(self, find: Callable[[object], Schema]) -> None:
        """``find``: what a $ref names; raises RequestError for what names nothing."""
        self._find = find
        self._first: dict[int, int] = {}

    def of(self, schema: dict[str, Any]) -> int:
        """Optional properties of an object of ``schema`` that may follow at one place."""
        return max(self._at_first(schema, 0), *_runs(schema))

    def _at_first(self, schema: Schema, depth: int) -> int:
        """Those that may come first, of all alternatives together."""
        if not isinstance(schema, dict) or depth > MAX_DEPTH:
            return 0
        if id(schema) not in self._first:
            self._first[id(schema)] = 0  # where it refers to itself
            n = sum(self._at_first(one, depth + 1) for one in self._parts(schema))
            self._first[id(schema)] = n + next(_runs(schema))
        return self._first[id(schema)]

    def _parts(self, schema: dict[str, Any]) -> Iterator[Schema]:
        """What an object of ``schema`` may be an object of, too."""
        listed = (schema.get(key) for key in _ALTERNATIVES)
        yield from chain.from_iterable(one for one in listed if isinstance(one, list))
        if "$ref" in schema:
            try:
                yield self._find(schema["$ref"])
            except RequestError:  # it is refused where it stands
                return


def _runs(schema: dict[str, Any]) -> Iterator[int]:
    """Optional properties from one that is required to the next; at least one number."""
    properties, required = schema.get("properties"), schema.get("required")
    needed = (
        {name for name in required if isinstance(name, str)} if isinstance(required, list) else ()
    )
    n = 0
    for name, value in properties.items() if isinstance(properties, dict) else ():
        if name in needed:
            yield n
            n = 0
        elif value is not False:
            n += 1
    yield n
