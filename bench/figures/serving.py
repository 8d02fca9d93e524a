"""What was wanted of a server beside faults, other keys and other servers."""

from __future__ import annotations

from bench.figures.target import Target


def growth(process: str) -> Target:
    return Target(
        f"100,000 requests, a tenth left, a hundredth wrong: bytes that the {process} process "
        "keeps of each",
        "endurance-requests",
        lambda d: d["results"][process]["bytes_per_request"],
        10,
        "{:.1f}",
        is_most=True,
        is_timed=False,
    )


SERVING = (
    Target(
        "an hour of engines killed, crashed and stopped at random moments: requests of every kind "
        "answered, each byte as undisturbed",
        "endurance-kills",
        lambda d: d["results"]["availability"],
        0.999,
        "{:.1%}",
        is_timed=False,
    ),
    Target(
        "an hour of prompts of 8,000, CPUs taken, processes stopped, clocks set: engines taken "
        "for dead",
        "endurance-hangs",
        lambda d: d["results"]["deaths"],
        0,
        "{:.0f}",
        is_most=True,
        is_timed=False,
    ),
    growth("api"),
    growth("engine"),
    Target(
        "10,000 users: series that they add to the metrics",
        "scrapes-2cores",
        lambda d: d["results"]["series_after"] - d["results"]["series_before"],
        0,
        "{:.0f}",
        is_most=True,
        is_timed=False,
    ),
    Target(
        "a scrape of the metrics each second, of one CPU",
        "scrapes-2cores",
        lambda d: d["results"]["share_of_a_cpu_at_one_a_second"],
        0.005,
        "{:.2%}",
        is_most=True,
        is_timed=False,
    ),
)
