"""Bounds of numbers that the grammar library does not keep to.

Between a whole number and the next one it forgets that the bound itself is excluded: the number
without a fraction, which each of those in between begins with, is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isfinite
from typing import Any

from kvasir.core.errors import RequestError
from kvasir.grammar.disjoint import MAX_DEPTH, Schema, SchemaSearch, conjuncts, types_of

MAX_LOOKS = 50_000
"""In one document: a tenth of a second. What there is no time for is not looked at."""
_KEYS = frozenset(("exclusiveMinimum", "exclusiveMaximum", "$ref", "allOf", "anyOf", "oneOf"))
Bound = tuple[Fraction, bool]
"""A number, and whether it is excluded itself."""


def forgotten(schema: Schema, search: SchemaSearch) -> str:
    """The keyword of a bound of ``schema``, with what stands beside it in its alternatives, that
    the library would take; empty: none."""
    if not isinstance(schema, dict) or not _KEYS & schema.keys():
        return ""
    try:
        return next(_forgotten(schema, (), search, MAX_DEPTH), "")
    except RequestError:  # a reference: it is refused where it stands
        return ""


def _forgotten(
    schema: Schema, outer: Sequence[Schema], search: SchemaSearch, depth: int
) -> Iterator[str]:
    if depth == 0 or not search.goes_on():
        return
    inner = conjuncts(schema, search, depth)
    parts = [part for part in (*outer, *inner) if isinstance(part, dict)]
    if all("number" in types_of(part) for part in parts):
        yield from _between(parts)
    for part in inner:
        if isinstance(part, dict):
            for other in (*(part.get("anyOf") or ()), *(part.get("oneOf") or ())):
                yield from _forgotten(other, parts, search, depth - 1)


def _between(parts: Sequence[dict[str, Any]]) -> Iterator[str]:
    lows = [bound for part in parts for bound in _bounds(part, "minimum", "exclusiveMinimum")]
    highs = [bound for part in parts for bound in _bounds(part, "maximum", "exclusiveMaximum")]
    if not lows or not highs:
        return
    low, is_above = max(lows)
    high, is_below = min(highs, key=lambda bound: (bound[0], not bound[1]))
    if low < high < low + 1:
        if is_above and low >= 0 and low.denominator == 1:
            yield "exclusiveMinimum"
        if is_below and high <= 0 and high.denominator == 1:
            yield "exclusiveMaximum"


def _bounds(schema: dict[str, Any], closed: str, opened: str) -> Iterator[Bound]:
    is_open = schema.get(opened) is True  # draft 4
    for name in (closed, opened):
        value = schema.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value):
            yield Fraction(value), is_open or name == opened
