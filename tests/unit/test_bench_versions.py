"""Two versions in turns: what is read from their reports, and what is made of it."""

from __future__ import annotations

import pytest

from bench.versions import READS, compare


def test_figures_of_reports() -> None:
    speed = {"tokens_per_second": {"median": 400.0}}
    assert READS["latency"]({"decode": speed, "prefill_512": speed}) == {
        "decode": 400.0,
        "prefill_512": 400.0,
    }
    many = {"output_tokens_per_second": {"median": 2000.0}, "outside_native": 0.02}
    assert list(READS["throughput"](many).values()) == [2000.0, 0.02]
    ways = {"serve": {"seconds_to_first_token": {"median": 0.4}}}
    assert READS["start"](ways) == {"start, serve": 0.4}
    assert READS["memory"]({"beyond_weights": 9}) == {"memory beyond weights": 9}


def test_medians_of_the_turns_are_compared() -> None:
    old, new = [{"decode": x} for x in (100.0, 90.0, 500.0)], [{"decode": x} for x in (99.0, 98.0)]
    (row,) = compare(old, new)
    assert row["old"] == 100.0 and row["new"] == 98.5
    assert row["ratio"] == pytest.approx(0.985)
