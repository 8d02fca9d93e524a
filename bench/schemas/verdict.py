"""What the grammar of a schema makes of instances, and why it differs from the standard."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bench.schemas.cases import Case, Instance
from kvasir.core.errors import RequestError
from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.matcher import Matcher
from tests.byte_grammar import byte_tokens, spelled, takes

MAX_LOOKS = 20_000
"""Pieces of text that are tried while an order is looked for."""
OTHER = "other"
_CONTROL = re.compile(r"\\u00[01]")
"""In JSON, a character that has no other spelling."""


@dataclass(frozen=True, slots=True)
class Verdict:
    case: Case
    refusal: RequestError | None = None
    taken: tuple[Instance, ...] = ()
    """Although they are not valid."""
    rejected: tuple[tuple[Instance, str], ...] = ()
    """Although they are valid, each with why."""


def judge(case: Case) -> Verdict:
    """Of every instance, written as Python's ``json`` does."""
    try:
        matcher = byte_tokens().compile(schema_grammar(case.schema).text)
    except RequestError as error:
        return Verdict(case, error)
    found = [(one, takes(matcher, spelled(one.value))) for one in case.instances]
    return Verdict(
        case,
        taken=tuple(one for one, is_taken in found if is_taken and not one.is_valid),
        rejected=tuple(
            (one, _reason(case, one.value, matcher))
            for one, is_taken in found
            if one.is_valid and not is_taken
        ),
    )


def _reason(case: Case, value: Any, matcher: Matcher) -> str:
    """What had to be otherwise for ``value`` to be taken."""
    if takes(matcher, spelled(_with_integers(value))):
        return "`1.0` for 1"
    plain = _with_integers(value)
    orders = _Orders(case.schema)
    if any(state.is_accepting for state in orders.ways(matcher, plain)):
        return "order of properties"
    free = byte_tokens().compile(schema_grammar(_without(case.schema, "format")).text)
    if takes(free, spelled(plain)):
        return "asserted format"
    return "one spelling of a character" if _CONTROL.search(spelled(plain)) else OTHER


def _with_integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_integers(item) for name, item in value.items()}
    return value


class _Orders:
    """Looks for an order of properties in which a value is taken."""

    def __init__(self, schema: Any) -> None:
        self._names = list(_listed(schema))
        self._n_left = MAX_LOOKS

    def ways(self, state: Matcher, value: Any) -> Iterator[Matcher]:
        """Where the grammar stands behind ``value``."""
        if isinstance(value, dict):
            names = sorted(value, key=self._place)
            yield from self._properties(state, "{", [(name, value[name]) for name in names])
        elif isinstance(value, list):
            yield from self._items(state, "[", value)
        else:
            yield from self._after(state, spelled(value))

    def _after(self, state: Matcher, text: str) -> Iterator[Matcher]:
        self._n_left -= 1
        found = state.copy()
        try:
            if self._n_left > 0:
                found.consume(list(text.encode()))
                yield found
        except ValueError:
            return

    def _items(self, state: Matcher, before: str, items: list[Any]) -> Iterator[Matcher]:
        if not items:
            yield from self._after(state, before.strip(",") + "]")
            return
        for begun in self._after(state, before):
            for behind in self.ways(begun, items[0]):
                yield from self._items(behind, ",", items[1:])

    def _properties(
        self, state: Matcher, before: str, left: list[tuple[str, Any]]
    ) -> Iterator[Matcher]:
        if not left:
            yield from self._after(state, before.strip(",") + "}")
        for i, (name, value) in enumerate(left):
            for begun in self._after(state, f"{before}{spelled(name)}:"):
                for behind in self.ways(begun, value):
                    yield from self._properties(behind, ",", [*left[:i], *left[i + 1 :]])

    def _place(self, name: str) -> int:
        """Listed names are tried first, in the order of the schema."""
        return self._names.index(name) if name in self._names else len(self._names)


def _listed(schema: Any) -> Iterator[str]:
    """Names of properties."""
    if isinstance(schema, list):
        for item in schema:
            yield from _listed(item)
    elif isinstance(schema, dict):
        for key, item in schema.items():
            if key == "properties" and isinstance(item, dict):
                yield from item
            yield from _listed(item)


def _without(schema: Any, keyword: str) -> Any:
    if isinstance(schema, list):
        return [_without(item, keyword) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without(item, keyword)
        for name, item in schema.items()
        if not (name == keyword and isinstance(item, str))
    }
