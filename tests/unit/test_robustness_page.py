"""docs/robustness.md: every case has its tests or says what lacks, every named test stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs/robustness.md"
ROW = re.compile(r"^\| (R\d+) \| .+ \| .+ \| (.+) \|$", re.MULTILINE)
CASES = dict(ROW.findall(PAGE.read_text("utf-8")))
DEFINED = {
    path.relative_to(TESTS).as_posix(): set(re.findall(r"^def (test_\w+)", text, re.MULTILINE))
    for path in TESTS.rglob("test_*.py")
    if (text := path.read_text("utf-8"))
}


def test_no_case_is_left_out() -> None:
    assert list(CASES) == [f"R{number:02}" for number in range(1, 123)]


@pytest.mark.parametrize("case", CASES)
def test_a_case_names_tests_that_stand(case: str) -> None:
    cited = re.findall(r"`([\w/]+\.py)(?:::(\w+))?`", CASES[case])
    for file, name in cited:
        assert file in DEFINED, file
        assert not name or name in DEFINED[file], name
    assert cited or len(CASES[case].split()) > 2, "neither a test nor what lacks"


def test_every_test_that_bears_a_number_is_named_by_its_case() -> None:
    numbered = [
        (f"R{int(found[1]):02}", file)
        for file, names in DEFINED.items()
        for name in names
        if (found := re.match(r"test_r(\d+)_", name))
    ]
    assert numbered
    assert [pair for pair in numbered if f"`{pair[1]}" not in CASES[pair[0]]] == []
