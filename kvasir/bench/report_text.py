"""A report as people read it: what was measured, a line each, and what allows it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

NOTE = "the whole report, with machine and settings: --output FILE, or a pipe\n"
APART = ("disturbed", "foreign", "runs", "command")
"""Told elsewhere, or not for eyes."""


def report_text(document: dict[str, Any]) -> str:
    """``document``: as ``report`` makes it."""
    rows = list(_rows("", document["results"]))
    if "decode_read" in document:
        rows += _rows("decode_read", document["decode_read"])
    width = max((len(name) for name, _ in rows), default=0)
    machine = document.get("machine") or {}
    engine = document.get("engine") or {}
    head = [str(x) for x in (engine.get("model"), machine.get("cpu")) if x]
    lines = [", ".join(head)] if head else []
    lines += [f"{name:<{width}}  {value}" for name, value in rows]
    return "\n".join(lines) + "\n" + NOTE


def _rows(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """Words of nested names, and numbers; a summary is one row."""
    if isinstance(value, dict) and "median" in value:
        low, high = value.get("min"), value.get("max")
        spread = f"  ({_number(low)} to {_number(high)})" if low is not None else ""
        unit = f" {value['unit']}" if "unit" in value else ""
        yield name, f"{_number(value['median'])}{unit}{spread}"
    elif isinstance(value, dict):
        for key, inner in value.items():
            if key not in APART and inner is not None:
                yield from _rows(f"{name} {key}".strip().replace("_", " "), inner)
    elif not isinstance(value, list):
        yield name, _number(value)


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value}"
