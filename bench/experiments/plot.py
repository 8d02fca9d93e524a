"""Draws an experiment's points as SVG. Matplotlib is asked for here only: it is optional."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.experiments.base import Chart, Json

MISSING = "no plot: matplotlib is not installed (pip install matplotlib)"


def draw(title: str, chart: Chart, points: Sequence[Json], path: Path) -> str | None:
    """Writes ``path``; the reason when it cannot."""
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError:
        return MISSING
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.subplots()
    width = 0.8 / len(chart.lines)
    for i, (key, label) in enumerate(chart.lines.items()):
        shown = [(point[chart.x], point[key]) for point in points if point.get(key) is not None]
        ys = [y for _, y in shown]
        if chart.kind == "bar":
            places = [j + (i - (len(chart.lines) - 1) / 2) * width for j in range(len(shown))]
            axes.bar(places, ys, width, label=label)
            axes.set_xticks(range(len(shown)), [str(x) for x, _ in shown])
        else:
            axes.plot([x for x, _ in shown], ys, marker="o", markersize=3, label=label)
    if chart.log_x:
        axes.set_xscale("log", base=2)
    if chart.log_y:
        axes.set_yscale("log")
    axes.set(title=title, xlabel=chart.x_label, ylabel=chart.y_label)
    axes.grid(True, alpha=0.3)
    axes.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})
    return None
