"""Runs experiments: JSON, plot, and a table of claims and figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from bench.experiments.base import Experiment, Json, Outcome, Settings
from bench.experiments.plot import draw
from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter
from kvasir.bench.planned import planned_executor
from kvasir.bench.report import command_line, report, write

TABLE = "README.md"


def run_experiment(
    experiment: Experiment, settings: Settings, folder: Path, say: Callable[[str], None]
) -> Json:
    """Runs it, writes NAME.json and NAME.svg to ``folder``; the document."""
    with Meter() as meter:
        outcome = experiment.run(settings)
    document = _document(experiment, settings, outcome, meter)
    write(document, folder / f"{experiment.name}.json")
    reason = draw(
        experiment.title, experiment.chart, outcome.points, folder / f"{experiment.name}.svg"
    )
    if reason is not None:
        say(reason)
    return document


def _document(
    experiment: Experiment, settings: Settings, outcome: Outcome, meter: Meter
) -> dict[str, Any]:
    results = {
        "summary": outcome.summary,
        "met": outcome.met,
        "identical": outcome.identical,
        "points": list(outcome.points),
        "seconds": round(meter.seconds, 2),
        "foreign": meter.foreign,
    }
    more: Json = {"title": experiment.title, "quick": settings.quick}
    more["command"] = command_line("python -m bench.experiments")
    more["row"] = {
        "claim": experiment.claim,
        "target": experiment.target,
        "measured": outcome.measured,
        "conditions": outcome.conditions,
    }
    if experiment.uses_model and not settings.quick:
        more["ceilings"] = measure_ceilings(planned_executor(settings.options).threads, 1)
    return report(experiment.name, outcome.engine, results, **more)


def write_table(folder: Path) -> str:
    """README.md with a row for every result in ``folder``; its text."""
    documents = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))]
    text = table(document for document in documents if "row" in document)
    (folder / TABLE).write_text(text, encoding="utf-8")
    return text


def table(documents: Iterable[Json]) -> str:
    """Markdown: the source's claim, what was measured, and under which conditions."""
    lines = [
        "# Claims and measurements",
        "",
        "Written by `python -m bench.experiments`; every row has a JSON beside it with machine, "
        "commit, command and all figures.",
        "",
        "| experiment | source's claim | target | met | measured | conditions | same answers |",
        "|---|---|---|---|---|---|---|",
    ]
    for document in documents:
        row = document["row"]
        notes = row["conditions"]
        if document["quick"]:
            notes = f"QUICK RUN, sizes too small to mean anything; {notes}"
        if document["disturbed"]:
            notes = f"DISTURBED by other processes; {notes}"
        same = {True: "yes", False: "NO", None: "-"}[document["results"]["identical"]]
        met = "yes" if document["results"]["met"] else "NO"
        cells = (document["kind"], row["claim"], row["target"], met, row["measured"], notes, same)
        lines.append(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |")
    return "\n".join(lines) + "\n"
