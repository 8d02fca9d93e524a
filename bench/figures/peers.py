"""What was wanted of a server beside other servers."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.figures.target import Read, Target

POISSON = "poisson-2cores"
most = partial(Target, is_most=True)


def of_soonest(time: str, quantile: str) -> Read:
    """Our milliseconds over those of the other engine that has the fewest."""

    def read(document: dict[str, Any]) -> float:
        ours, *others = (float(x["median"][time][quantile]) for x in document["engines"])
        return ours / min(others)

    return read


BESIDE = (
    most("requests at random moments, over the best of llama-server, OpenVINO and vLLM: time to "
         "the first token, p50", POISSON, of_soonest("ttft", "p50"), 1 / 2),
    most("the same, p99 (of 64 requests)", POISSON, of_soonest("ttft", "p99"), 1 / 3),
    most("the same: time of a token after the first, p50, for one server sends several together",
         POISSON, of_soonest("tpot", "p50"), 1 / 2),
    most("the same: gaps between the chunks of a stream, p99",
         POISSON, of_soonest("itl", "p99"), 1 / 3),
)  # fmt: skip
