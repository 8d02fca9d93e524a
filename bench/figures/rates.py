"""What became of the rates between two versions."""

from __future__ import annotations

from bench.figures.results import load

BAR = 0.99


def rates() -> str:
    """A line for every load. A loss is missed when even the interval's upper end shows it."""
    document = load("rates-2cores")
    head = [
        "| load | new over old | with 95 % | pairs, with equal answers | |",
        "|---|--:|--:|--:|---|",
    ]
    rows = [
        f"| {row['what']} | {row['ratio']:.3f}x | {row['low']:.3f} to {row['high']:.3f} | "
        f"{row['pairs']}, {row['equal_answers']} | {verdict(row['low'], row['high'])} |"
        for row in document["results"]["rows"]
    ]
    return "\n".join([*head, *rows]) + "\n"


def verdict(low: float, high: float) -> str:
    """Of the interval of a ratio that was to be 0.99 or more."""
    if low >= BAR:
        return "met"
    return "missed" if high < BAR else "within what these pairs can tell"
