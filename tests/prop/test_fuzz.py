"""Mutated model files, requests and images: a clean error or an answer, and what goes on after it.

The short form of ``make fuzz``.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests import fuzz_run
from tests.fuzz_run import Report, run


@pytest.mark.parametrize(("kind", "n"), [("models", 160), ("requests", 400), ("images", 400)])
def test_fuzz(kind: str, n: int) -> None:
    report = run(kind, n)
    assert report.findings == []
    assert sum(report.outcomes.values()) == n
    assert set(report.outcomes) == {"answered", "refused"}
    assert min(report.outcomes.values()) > n // 10


def test_what_goes_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_run, "HANG_SECONDS", 8)
    report = run("faults", 6)
    assert dict(report.outcomes) == {"answered": 2, "found": 2, "crashed": 2}
    (raised, flood, died, hung) = report.findings
    assert raised[0] == 1 and "ZeroDivisionError" in raised[1]
    assert flood[0] == 2 and "MemoryError" in flood[1]
    assert died[0] == 3 and "exit status -11" in died[1]
    assert hung[0] == 5 and "hangs" in hung[1]


def test_parts_of_a_run_are_one_result(tmp_path: Path) -> None:
    path = tmp_path / "fuzz.json"
    fuzz_run.keep("calls", 3, Report(Counter(said=2, called=1)), 1.2, path)
    fuzz_run.keep("calls", 6, Report(Counter(said=1), [(6, "x")]), 2.0, path)
    found = json.loads(path.read_text())
    assert found["results"] == {
        "cases": 4,
        "first_seed": 3,
        "outcomes": {"said": 3, "called": 1},
        "findings": 1,
        "seconds": 3,
    }
    with pytest.raises(ValueError, match="up to seed 7 at"):
        fuzz_run.keep("calls", 8, Report(Counter(said=1)), 1.0, path)
