"""What the grammar of a schema makes of instances, and why it differs from the standard."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Any

from bench.schemas.cases import Case, Instance
from kvasir.core.errors import RequestError
from kvasir.grammar.constraint import schema_grammar
from kvasir.grammar.matcher import Matcher
from tests.byte_grammar import byte_tokens, spelled, takes

MAX_ORDERS = 120
"""Orders of an object's properties that are tried."""
OTHER = "other"


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
    keys = json.dumps(case.schema)
    plain = _with_integers(value)
    for ordered in islice(_orders(plain, lambda name: keys.find(json.dumps(name))), MAX_ORDERS):
        if takes(matcher, spelled(ordered)):
            return "order of properties"
    free = byte_tokens().compile(schema_grammar(_without(case.schema, "format")).text)
    return "asserted format" if takes(free, spelled(plain)) else OTHER


def _with_integers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_with_integers(item) for item in value]
    if isinstance(value, dict):
        return {name: _with_integers(item) for name, item in value.items()}
    return value


def _orders(value: Any, place: Callable[[str], int]) -> Iterator[Any]:
    """``value`` with the properties of every object by ``place``, those without one last; then the
    outermost in other orders."""
    first = _sorted(value, place)
    yield first
    if isinstance(first, dict):
        for items in permutations(first.items()):
            yield dict(items)


def _sorted(value: Any, place: Callable[[str], int]) -> Any:
    if isinstance(value, list):
        return [_sorted(item, place) for item in value]
    if not isinstance(value, dict):
        return value
    names = sorted(value, key=lambda name: (place(name) < 0, place(name)))
    return {name: _sorted(value[name], place) for name in names}


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
