"""Kept results, and which of them a page may cite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kvasir.bench.report import QUIET

RESULTS = Path(__file__).parents[1] / "results"


class Refused(Exception):
    """A result that says less than its figures seem to."""


def load(name: str, folder: Path = RESULTS, *, is_timed: bool = True) -> dict[str, Any]:
    """``NAME.json``. Raises Refused when it was measured from a tree with changes, with sizes that
    mean nothing, or, if ``is_timed``, beside others who took more than a tenth of the machine."""
    path = folder / f"{name}.json"
    if not path.exists():
        raise Refused(f"{path.name}: there is no such result: measure it again")
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    commit = document["machine"]["commit"]
    if commit is None or commit.endswith("+"):
        raise Refused(f"{path.name}: commit {commit}: measure it again from a clean tree")
    worst = foreign(document)
    if is_timed and worst > QUIET:
        raise Refused(f"{path.name}: others took {worst:.0%} of the machine: measure it again")
    if document.get("quick"):
        raise Refused(f"{path.name}: a quick run measures nothing")
    return document


def foreign(value: Any) -> float:
    """The largest "foreign" inside."""
    if isinstance(value, list):
        return max(map(foreign, value), default=0.0)
    if not isinstance(value, dict):
        return 0.0
    own = value.get("foreign", 0.0)
    worst = max(own, default=0.0) if isinstance(own, list) else own
    return max([worst, *map(foreign, value.values())])
