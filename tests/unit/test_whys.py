"""What servers said of slow answers is held against what was done to them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.whys.__main__ import judged, merged


def run(cause: str | None, told: float) -> dict[str, Any]:
    return {"cause": cause, "truth": 2.0, "parts": {"disk": told}}


def test_seconds_are_within_a_tenth_or_not() -> None:
    found = judged("disk", [run("disk", 1.9), run("slots", 1.0), run("disk", 2.4)])
    assert (found["runs"], found["named"], found["within"]) == (3, 2, 1)
    assert (found["median_error"], found["worst_error"]) == (-0.05, -0.5)
    nothing = judged("nothing", [run(None, 0.0), run("machine", 0.0)])
    assert nothing["named"] == 1 and "within" not in nothing


def test_causes_of_another_run_keep_their_commit(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    before = {"load": judged("load", [run("load", 0.0)])}
    path.write_text(json.dumps({"machine": {"commit": "old"}, "results": {"causes": before}}))
    told = merged(path, "new", {"disk": judged("disk", [run("disk", 2.0)])})
    commits = {name: x["commit"] for name, x in told["causes"].items()}
    assert commits == {"disk": "new", "load": "old"}
    assert (told["named"], told["within"]) == (1.0, 0.5)
