"""Bars of a peers' result as SVG text: the same bytes wherever it is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

from bench.figures.readme import short
from bench.figures.results import load

COLOURS = ("#1f6feb", "#9aa4b2", "#c3cad4", "#e0a458")
"""Ours first."""
LEFT, WIDTH, BAR, GAP, TOP = 210, 330, 14, 26, 56
Row = tuple[str, Sequence[float]]
"""A title with its unit, and one value for each engine."""


def peers(name: str) -> str:
    """Rates and times to the first token of all engines, each row on a scale of its own."""
    document = load(name)
    engines, n = document["engines"], document["shapes"]["batch"][0]
    medians = [engine["median"] for engine in engines]
    rows: list[Row] = [
        (f"{n} requests, tokens/s", [x["batch"] for x in medians]),
        ("one request, tokens/s", [x["decode"] for x in medians]),
        ("first token after 512, ms", [_wait(x, 512) for x in medians]),
        ("first token after 2,048, ms", [_wait(x, 2048) for x in medians]),
    ]
    return _svg([short(engine["name"]) for engine in engines], rows)


def _wait(median: dict[str, Any], n_prompt: int) -> float:
    """Milliseconds until a prompt is computed."""
    return float(1000 * n_prompt / median[f"prefill {n_prompt}"])


def _svg(engines: Sequence[str], rows: Sequence[Row]) -> str:
    height = TOP + len(rows) * (len(engines) * BAR + GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="640" height="{height}" '
        'font-family="sans-serif" font-size="12">'
    )
    body = [*_legend(engines), *(part for i, row in enumerate(rows) for part in _bars(i, row))]
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *body, "</svg>", ""])


def _legend(engines: Sequence[str]) -> Iterator[str]:
    for i, engine in enumerate(engines):
        x, y = 12 + 310 * (i % 2), 12 + 18 * (i // 2)
        yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{COLOURS[i]}"/>'
        yield f'<text x="{x + 18}" y="{y + 10}">{escape(engine)}</text>'


def _bars(place: int, row: Row) -> Iterator[str]:
    title, values = row
    y = TOP + place * (len(values) * BAR + GAP)
    yield f'<text x="12" y="{y + len(values) * BAR // 2 + 4}">{escape(title)}</text>'
    for i, value in enumerate(values):
        width = round(WIDTH * value / max(values))
        top = y + i * BAR
        colour = COLOURS[i]
        yield f'<rect x="{LEFT}" y="{top}" width="{width}" height="{BAR - 2}" fill="{colour}"/>'
        yield f'<text x="{LEFT + width + 6}" y="{top + 10}">{value:,.0f}</text>'


PICTURES: dict[str, Callable[[], str]] = {"docs/speed.svg": lambda: peers("peers-smollm2-2cores")}
"""By their place in the tree."""
