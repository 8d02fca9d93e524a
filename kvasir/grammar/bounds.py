"""Bounds of numbers that the grammar library does not keep to.

Between a whole number and the next one it forgets that the bound itself is excluded: the number
without a fraction, which each of those in between begins with, is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import isfinite
from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.grammar.disjoint import MAX_DEPTH, Schema, SchemaSearch, conjuncts, types_of

MAX_LOOKS = 20_000
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
        return next(_forgotten(schema, _Range(), search, MAX_DEPTH), "")
    except RequestError:  # a reference: it is refused where it stands
        return ""


def _forgotten(schema: Schema, outer: _Range, search: SchemaSearch, depth: int) -> Iterator[str]:
    if depth == 0 or not search.goes_on():
        return
    parts = [part for part in conjuncts(schema, search, depth) if isinstance(part, dict)]
    inner = outer.within(parts)
    if inner.takes_numbers:
        yield from inner.forgotten()
        for part in parts:
            for other in (*(part.get("anyOf") or ()), *(part.get("oneOf") or ())):
                yield from _forgotten(other, inner, search, depth - 1)


class _Range(msgspec.Struct, frozen=True):
    """Of numbers; None: without a bound."""

    low: Bound | None = None
    high: Bound | None = None
    takes_numbers: bool = True
    """Not only whole ones."""

    def within(self, parts: Sequence[dict[str, Any]]) -> _Range:
        """What all ``parts`` leave of it."""
        lows = [bound for part in parts for bound in _bounds(part, "minimum", "exclusiveMinimum")]
        highs = [bound for part in parts for bound in _bounds(part, "maximum", "exclusiveMaximum")]
        lows += [self.low] if self.low else []
        highs += [self.high] if self.high else []
        return _Range(
            max(lows, default=None),
            min(highs, key=lambda bound: (bound[0], not bound[1]), default=None),
            self.takes_numbers and all("number" in types_of(part) for part in parts),
        )

    def forgotten(self) -> Iterator[str]:
        """Bounds that are excluded and would be taken."""
        if self.low is None or self.high is None:
            return
        (low, is_above), (high, is_below) = self.low, self.high
        if low < high < low + 1:
            if is_above and low >= 0 and low.denominator == 1:
                yield "exclusiveMinimum"
            if is_below and high <= 0 and high.denominator == 1:
                yield "exclusiveMaximum"


def _bounds(schema: dict[str, Any], closed: str, opened: str) -> Iterator[Bound]:
    is_open = schema.get(opened) is True  # draft 4
    for name in (closed, opened):
        value = schema.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        if isinstance(value, int) or isfinite(value):
            yield Fraction(value), is_open or name == opened
