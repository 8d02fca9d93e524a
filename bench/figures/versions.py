"""What a change of the boundaries and the spine was to leave as it was: old and new in turns."""

from __future__ import annotations

from typing import Any

from bench.figures.target import Read, Target

RESULT = "versions-2cores"
RATES = {
    "decode": "one stream",
    "prefill_512": "prompts of 512",
    "prefill_2048": "prompts of 2,048",
    "64 requests": "64 requests",
}
COSTS = {
    "start, run": "process start to first token, `run`",
    "start, serve": "process start to first token, `serve`",
    "memory beyond weights": "memory of both processes beyond weights and KV",
}


def ratio(what: str, *, is_cost: bool = False) -> Read:
    """Of the new one's rate to the old one's, or of the old one's cost to the new one's."""

    def read(document: dict[str, Any]) -> float:
        row = next(row for row in document["rows"] if row["what"] == what)
        return float(row["old"] / row["new"] if is_cost else row["new"] / row["old"])

    return read


VERSIONS = (
    *(Target(f"{said}: rate, new over old", RESULT, ratio(what), 0.99)
      for what, said in RATES.items()),
    *(Target(f"{said}: old over new", RESULT, ratio(what, is_cost=True), 0.99)
      for what, said in COSTS.items()),
)  # fmt: skip
