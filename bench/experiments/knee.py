"""Where a throughput-latency curve bends."""

from __future__ import annotations

from collections.abc import Sequence


def knee(latencies: Sequence[float], rates: Sequence[float]) -> int:
    """Index of the point farthest above the line from the first to the last, both axes scaled to
    0 … 1: beyond it latency grows faster than throughput.

    Satopaa, Albrecht, Irwin, Raghavan: Finding a "Kneedle" in a haystack, 2011.
    """
    if len(latencies) != len(rates) or not rates:
        raise ValueError(f"{len(latencies)} latencies for {len(rates)} rates")
    xs, ys = _scaled(latencies), _scaled(rates)
    heights = [y - x for x, y in zip(xs, ys, strict=True)]
    return heights.index(max(heights))


def operating_point(rates: Sequence[float], share: float = 0.75) -> int:
    """Index of the first point that reaches ``share`` of the best rate."""
    return next(i for i, rate in enumerate(rates) if rate >= share * max(rates))


def _scaled(values: Sequence[float]) -> list[float]:
    low, span = min(values), max(values) - min(values)
    return [(value - low) / span if span else 0.0 for value in values]
