"""What was wanted of a server beside other servers."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.figures.target import Read, Target

POISSON, TEXTS = "poisson-2cores", "texts-2cores"
most = partial(Target, is_most=True)


def of_soonest(time: str, quantile: str) -> Read:
    """Our milliseconds over those of the other engine that has the fewest."""

    def read(document: dict[str, Any]) -> float:
        ours, *others = (float(x["median"][time][quantile]) for x in document["engines"])
        return ours / min(others)

    return read


def fewest_texts(document: dict[str, Any]) -> float:
    """Of all lengths and numbers of clients the least ratio to llama-server."""
    return min(float(row["ratio"]) for row in document["rows"])


BESIDE = (
    most("requests at random moments, over the best of llama-server, OpenVINO and vLLM: time to "
         "the first token, p50", POISSON, of_soonest("ttft", "p50"), 1 / 2),
    most("the same, p99 (of 64 requests)", POISSON, of_soonest("ttft", "p99"), 1 / 3),
    most("the same: time of a token after the first, p50, for one server sends several together",
         POISSON, of_soonest("tpot", "p50"), 1 / 2),
    most("the same: gaps between the chunks of a stream, p99",
         POISSON, of_soonest("itl", "p99"), 1 / 3),
    Target("texts made vectors of in a second, over llama-server on the same file, the least of "
           "four shapes", TEXTS, fewest_texts, 2.0),
)  # fmt: skip
