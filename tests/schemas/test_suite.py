"""The JSON-Schema-Test-Suite: a schema is refused by name, or nothing passes that is not valid.

KVASIR_SCHEMA_SUITE names its folder ``tests`` (``make test-schemas`` fetches the ``jsonschema``
package's copy). Valid instances that are rejected are listed in docs/json-schema.md, which
``python -m bench.schemas suite FOLDER --write`` writes.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from bench.schemas.cases import DRAFTS, suite_cases
from bench.schemas.listing import PAGE, listed, rejected_rows
from bench.schemas.verdict import Verdict, judge
from kvasir.grammar.errors import UnsupportedSchema

FOLDER = os.environ.get("KVASIR_SCHEMA_SUITE")
pytestmark = pytest.mark.skipif(not FOLDER, reason="make test-schemas")
ANNOTATED = ("optional/format/", "optional/content")
"""Files of formats and contents that a validator may take for annotations, which they are here."""
N_CASES = {"draft7": 300, "draft2020-12": 400}
"""Fewer would not be the suite."""
EMPTY = ("no value is valid", "a schema is a JSON object")
"""Begins of the refusals of schemas that have no instance, for which no keyword need stand."""


@cache
def verdicts(draft: str) -> list[Verdict]:
    return [judge(case) for case in suite_cases(Path(FOLDER or ""), draft)]


@pytest.mark.parametrize("draft", DRAFTS)
def test_nothing_passes_that_is_not_valid(draft: str) -> None:
    found = verdicts(draft)
    assert len(found) >= N_CASES[draft]
    wrong = [
        (one.case.name, one.case.description, instance.description)
        for one in found
        if not one.case.name.startswith(ANNOTATED)
        for instance in one.taken
    ]
    assert wrong == []


@pytest.mark.parametrize("draft", DRAFTS)
def test_refused_by_name(draft: str) -> None:
    for one in verdicts(draft):
        if isinstance(one.refusal, UnsupportedSchema):
            assert f"'{one.refusal.keyword}'" in one.refusal.message
        elif one.refusal is not None:
            assert one.refusal.message.startswith(EMPTY), one.refusal.message


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_schema_without_instance_has_none(draft: str) -> None:
    for one in verdicts(draft):
        if one.refusal is not None and not isinstance(one.refusal, UnsupportedSchema):
            assert not any(instance.is_valid for instance in one.case.instances), one.case


def test_what_is_rejected_is_listed() -> None:
    assert listed(PAGE.read_text("utf-8")) == rejected_rows(Path(FOLDER or ""))
