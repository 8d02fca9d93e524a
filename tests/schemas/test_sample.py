"""Schemas of real programs: most are accepted, and instances are judged as ``jsonschema`` does.

KVASIR_SCHEMAS names a file of gzipped lines of JSON (``make test-schemas SCHEMAS=FILE``).
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from bench.schemas.cases import sample_cases
from bench.schemas.validity import fault
from bench.schemas.verdict import OTHER, Verdict, judge

FILE = os.environ.get("KVASIR_SCHEMAS")
pytestmark = pytest.mark.skipif(not FILE, reason="make test-schemas SCHEMAS=FILE")
LEAST_ACCEPTED = 0.9
MOST_OTHER = 0.005
"""Of the valid instances."""


@cache
def verdicts() -> list[Verdict]:
    return [judge(case) for case in sample_cases(Path(FILE or ""))]


def test_most_are_accepted() -> None:
    found = verdicts()
    assert len(found) > 100
    assert sum(one.refusal is None for one in found) >= LEAST_ACCEPTED * len(found)


def test_what_is_taken_is_valid() -> None:
    """But for formats that nobody asserts."""
    wrong = [
        (one.case.name, instance.description, reason)
        for one in verdicts()
        for instance in one.taken
        if (reason := fault(one.case.schema, instance.value)) is not None
    ]
    assert wrong == []


def test_what_is_rejected_is_written_otherwise() -> None:
    """The order of properties, a point in a whole number, an asserted format; of very few the order
    is not found among so many, or an expression has too many states."""
    found = [one for one in verdicts() if one.refusal is None]
    n_valid = sum(instance.is_valid for one in found for instance in one.case.instances)
    lost = [one.case.name for one in found for _, why in one.rejected if why == OTHER]
    assert len(lost) <= MOST_OTHER * n_valid, lost
