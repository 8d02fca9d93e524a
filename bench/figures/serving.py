"""What was wanted of a server beside faults, other keys and other servers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from bench.figures.peers import BESIDE
from bench.figures.results import RESULTS
from bench.figures.target import Read, Target

Most = Callable[[str, str, Read, float, str], Target]
most: Most = partial(Target, is_most=True)
counted: Most = partial(Target, is_most=True, is_timed=False)


def results(*path: str) -> Read:
    """The figure at ``path`` below the results."""

    def read(document: dict[str, Any]) -> float:
        found = document["results"]
        for name in path:
            found = found[name]
        return float(found)

    return read


def growth(process: str) -> Target:
    return counted(
        f"100,000 requests, a tenth left, a hundredth wrong: bytes that the {process} process "
        "keeps of each",
        "endurance-requests",
        results(process, "bytes_per_request"),
        10,
        "{:.1f}",
    )


def dearest(document: dict[str, Any]) -> float:
    """The dialect whose events cost most, over chat completions."""
    each = document["results"]["microseconds"]
    return max(float(values["over_chat"]) for values in each.values())


EVENTS = (
    counted(
        "64 streams: CPU time of the API process for an event of chat completions, in microseconds",
        "events-2cores",
        results("microseconds", "chat", "median"),
        25,
        "{:.1f}",
    ),
    counted(
        "the same, over a server of a few lines on the same machine (25 over 11)",
        "events-2cores",
        results("chat_over_plain_asgi"),
        25 / 11,
        "{:.2f}x",
    ),
    counted("the same, dearest dialect over chat", "events-2cores", dearest, 1.5, "{:.2f}x"),
    most(
        "64 streams over HTTP, lost against offline",
        "streaming-2cores",
        results("lost"),
        0.03,
        "{:.1%}",
    ),
)


def wrong(document: dict[str, Any]) -> float:
    """Answers of another status than 200 and 429, streams that broke, looks that failed."""
    found = document["results"]
    loads = (found["at_once"], found["burst"])
    odd = sum(n for load in loads for s, n in load["statuses"].items() if s not in ("200", "429"))
    broken = sum(n for load in loads for n in load["errors"].values())
    return float(odd + broken + len(found["health"]["failures"]))


BURSTS = "bursts-2cores"
LOADS = (
    counted("1,000 streams at once, then bursts of 20 times the usual rate: errors but 429",
            BURSTS, wrong, 0, "{:.0f}"),
    most("the same: `/health` p99", BURSTS, results("health", "ms", "p99"), 50, "{:.0f} ms"),
    most("the same: lag of the event loop p99.9", BURSTS,
         results("lag", "seconds_at_most", "99.9%"), 0.02, "{:.3f} s"),
    Target("the same: goodput of 1,000 streams, of the capacity", BURSTS,
           results("at_once", "goodput"), 0.9, "{:.2f}"),
    Target("the same: goodput of the burst, of the capacity", BURSTS,
           results("burst", "goodput"), 0.9, "{:.2f}"),
    Target("the same: refusals whose `Retry-After` is within twice the time until the queue had "
           "room", BURSTS, results("refusals", "retry_after", "within_2x"), 1, "{:.0%}"),
)  # fmt: skip


KEYS = (
    Target("2,000 prompts that another key asked before, and as many that nobody did: p that their "
           "times are of one distribution", "tenants-2cores", results("p"), 0.01, "{:.3f}"),
    counted("the same: tokens found in the cache", "tenants-2cores",
            lambda d: d["results"]["known_to_another_key"]["cached_tokens"][1], 0, "{:.0f}"),
)  # fmt: skip


def drawn(part: str) -> Read:
    """Requests of ``part``, over all seeds."""

    def read(document: dict[str, Any]) -> float:
        runs = document["results"].items()
        mine = [run for name, run in runs if name == part or name.startswith(f"{part}, seed ")]
        return float(sum(run["test_cases"]["generated"] for run in mine))

    return read


DRAWN = tuple(
    Target(what, "schemathesis", drawn(part), 10_000, "{:,.0f}",
           is_timed=False)
    for part, what in (
        ("every operation", "requests drawn from the OpenAPI document, without an answer outside "
         "of it"),
        ("what is kept", "the same, of routes of the state and of batches"),
    )
)  # fmt: skip


def overdue(document: dict[str, Any]) -> float:
    """Seconds beyond its limit at which an engine that was stopped had ended, by the clock of who
    stopped it; in results without that, those that the server counted when it killed it."""
    found = document["results"]["hang"]
    return float(found.get("killed_after", found["still"]) - found["limit"])


PAUSE = "survival-pause-2cores"
DEATHS = (
    Target(
        "an hour of engines killed, crashed and stopped at random moments: requests of every kind "
        "answered, each byte as undisturbed",
        "endurance-kills",
        results("availability"),
        0.999,
        "{:.1%}",
        is_timed=False,
    ),
    Target(
        "the same: seconds, without those in which the run was stopped as a whole",
        "endurance-kills",
        results("seconds"),
        3600,
        "{:.0f}",
        is_timed=False,
    ),
    counted(
        "an hour of prompts of 8,000, CPUs taken, processes stopped, clocks set: engines taken "
        "for dead",
        "endurance-hangs",
        results("deaths"),
        0,
        "{:.0f}",
    ),
    most(
        "pause of 64 streams of 200 tokens when their engine is killed, over a warm start and "
        "their prefill",
        PAUSE,
        results("ratio"),
        1.3,
        "{:.2f}x",
    ),
    most("an engine that hangs: killed so long after its limit", PAUSE, overdue, 1, "{:.1f} s"),
    most(
        "an engine that hangs: pause beyond its limit, over that of one that is killed",
        PAUSE,
        lambda d: (
            (d["results"]["hang"]["pause"] - d["results"]["hang"]["limit"]) / d["results"]["pause"]
        ),
        1.3,
        "{:.2f}x",
    ),
)

REACH = "reach-2cores"


def reach(name: str) -> Read:
    """Of the worst mix of all parts, over plain streams in the same turns; of a result without a
    judgement, over those of its part."""
    return lambda d: max(
        float(x["worst"][name]["ratio"])
        for x in ([d["judgement"]] if "judgement" in d else d["parts"])
    )


MIXES = (
    Target(
        "mixes of fields at their bounds, 64 at once of one key, beside a stream of another",
        REACH,
        lambda d: len({x["seed"] for part in d["parts"] for x in part["each"]}),
        300,
        "{:.0f}",
        is_timed=False,
    ),
    most(
        "the worst of them, over as many plain streams: gap p99", REACH, reach("p99"), 2, "{:.2f}x"
    ),
    most("the same: longest gap", REACH, reach("longest"), 5, "{:.2f}x"),
    most("the same: time to the first token", REACH, reach("first"), 3, "{:.2f}x"),
)
"""Judged when there is a result."""

METRICS = (
    counted(
        "10,000 users: series that they add to the metrics",
        "scrapes-2cores",
        lambda d: d["results"]["series_after"] - d["results"]["series_before"],
        0,
        "{:.0f}",
    ),
    counted(
        "a scrape of the metrics each second, of one CPU",
        "scrapes-2cores",
        results("share_of_a_cpu_at_one_a_second"),
        0.005,
        "{:.2%}",
    ),
)

SERVING = (
    *DEATHS,
    growth("api"),
    growth("engine"),
    *DRAWN,
    *METRICS,
    *EVENTS,
    *LOADS,
    *KEYS,
    *(MIXES if (RESULTS / f"{REACH}.json").exists() else ()),
    *BESIDE,
)
