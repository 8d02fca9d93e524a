"""A measurement as JSON: settings, results, and everything needed to judge or repeat it."""

from __future__ import annotations

import json
import shlex
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

from kvasir.bench.fingerprint import fingerprint
from kvasir.bench.report_text import report_text
from kvasir.checkpoints.loaded import LoadedModel
from kvasir.engine.build import BuiltEngine

QUIET = 0.1
"""Share of the machine that others may take before a figure is marked as disturbed."""


def summary(values: Sequence[float], digits: int = 2) -> dict[str, Any]:
    """Median, extremes and every single value."""
    return {
        "median": round(statistics.median(values), digits),
        "min": round(min(values), digits),
        "max": round(max(values), digits),
        "runs": [round(value, digits) for value in values],
    }


def outside_native(native: float, wall: float) -> float | None:
    """Share of the time in which no native step ran: scheduling, inputs and outputs that the
    overlapped loop did not hide. None when nothing was native."""
    return round(1 - native / wall, 4) if native else None


def describe_engine(loaded: LoadedModel, built: BuiltEngine) -> dict[str, Any]:
    """The model and what its engine was resolved to."""
    tensors = loaded.source.tensors.values()
    return {
        "model": loaded.source.name,
        "weight_bytes": sum(info.n_bytes for info in tensors),
        "weights_hash": loaded.source.content_hash,
        "numerics_id": built.numerics_id,
        "resolved": {name: without_home(why) for name, why in built.config.reasons.items()},
    }


def command_line(program: str, words: Sequence[str] | None = None) -> str:
    """``program`` with ``words``, those of this process by default. Paths that lead out of the
    working folder shrink to file names: they mean nothing on another machine."""
    chosen = sys.argv[1:] if words is None else words
    return shlex.join([*program.split(), *map(_without_folder, chosen)])


def without_home(text: str) -> str:
    """Where somebody's home lies is nobody's business."""
    return text.replace(str(Path.home()), "~")


def _without_folder(word: str) -> str:
    is_named = "=" in word and not PurePath(word).is_absolute()
    name, equals, value = word.partition("=") if is_named else ("", "", word)
    path = PurePath(value)
    leads_out = path.is_absolute() or ".." in path.parts or value.startswith("~")
    return f"{name}{equals}{path.name if leads_out else value}"


def report(
    kind: str, engine: dict[str, Any], results: dict[str, Any], **more: Any
) -> dict[str, Any]:
    """The whole document. ``results`` entries may carry "foreign", see fingerprint.Meter."""
    return {
        "kind": kind,
        "command": command_line("kvasir"),
        "machine": fingerprint(),
        "engine": engine,
        "results": results,
        "disturbed": is_disturbed(results),
        **more,
    }


def is_disturbed(results: Any) -> bool:
    """Whether any "foreign" share inside is above QUIET."""
    if isinstance(results, dict):
        own = results.get("foreign", 0.0)
        worst = max(own) if isinstance(own, list) else own
        return worst > QUIET or any(is_disturbed(value) for value in results.values())
    return isinstance(results, list) and any(is_disturbed(value) for value in results)


def write(document: dict[str, Any], path: Path | None) -> None:
    """To ``path``, or to standard output: there a terminal gets a table."""
    text = json.dumps(document, indent=2) + "\n"
    if path is None:
        is_table = sys.stdout.isatty() and "results" in document
        sys.stdout.write(report_text(document) if is_table else text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
