"""Mutated model files, requests and images: a clean error or an answer, and what goes on after it.

The short form of ``make fuzz``.
"""

from __future__ import annotations

import pytest

from tests import fuzz_run
from tests.fuzz_run import run


@pytest.mark.parametrize(("kind", "n"), [("models", 160), ("requests", 400), ("images", 400)])
def test_fuzz(kind: str, n: int) -> None:
    report = run(kind, n)
    assert report.findings == []
    assert sum(report.outcomes.values()) == n
    assert set(report.outcomes) == {"answered", "refused"}
    assert min(report.outcomes.values()) > n // 10


def test_what_goes_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_run, "HANG_SECONDS", 8.0)
    report = run("faults", 6)
    assert dict(report.outcomes) == {"answered": 2, "found": 2, "crashed": 2}
    (raised, flood, died, hung) = report.findings
    assert raised[0] == 1 and "ZeroDivisionError" in raised[1]
    assert flood[0] == 2 and "MemoryError" in flood[1]
    assert died[0] == 3 and "exit status -11" in died[1]
    assert hung[0] == 5 and "hangs" in hung[1]
