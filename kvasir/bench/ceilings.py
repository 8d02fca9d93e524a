"""What the machine allows: read bandwidth and arithmetic peaks, measured beside every figure."""

from __future__ import annotations

import statistics
from math import log
from typing import Any

import psutil

from kvasir import _native

READ_SIZES = {"8MB": 8 << 20, "24MB": 24 << 20, "100MB": 100 << 20, "1GB": 1 << 30}
PEAKS = {"int8": "GOP/s", "bf16": "GFLOP/s", "fp32": "GFLOP/s"}

Ceilings = dict[str, dict[str, Any]]
"""Kind -> {"median", "best", "unit", "threads"} or {"missing": reason}."""


def measure_ceilings(n_threads: int, repeat: int = 3) -> Ceilings:
    """Reads of every size and peaks of every type; 0.2 s a measurement."""
    found = {
        f"read_{name}": _read(n_bytes, n_threads, repeat) for name, n_bytes in READ_SIZES.items()
    }
    for kind, unit in PEAKS.items():
        missing = _native.measure_missing(kind)
        found[kind] = (
            {"missing": missing} if missing else _repeated(kind, n_threads, 0, repeat, unit)
        )
    return found


def _read(n_bytes: int, n_threads: int, repeat: int) -> dict[str, Any]:
    free = psutil.virtual_memory().available
    if n_bytes > free // 2:
        return {"missing": f"needs {n_bytes >> 20} MiB, {free >> 20} MiB are free"}
    return _repeated("read", n_threads, n_bytes, repeat, "GB/s")


def _repeated(kind: str, n_threads: int, n_bytes: int, repeat: int, unit: str) -> dict[str, Any]:
    rates = [_native.measure(kind, n_threads, n_bytes) for _ in range(repeat)]
    return {
        "median": round(statistics.median(rates), 1),
        "best": round(max(rates), 1),
        "unit": unit,
        "threads": n_threads,
    }


def bandwidth_for(ceilings: Ceilings, n_bytes: int) -> float | None:
    """GB/s (median) of the measured read whose size is nearest to ``n_bytes`` >= 1, by their
    ratio; None without one."""
    entries = {size: ceilings.get(f"read_{name}", {}) for name, size in READ_SIZES.items()}
    rates = {size: float(entry["median"]) for size, entry in entries.items() if "median" in entry}
    nearest = min(rates, key=lambda size: abs(log(size / n_bytes)), default=None)
    return None if nearest is None else rates[nearest]


def mean_ceilings(before: Ceilings, after: Ceilings) -> Ceilings:
    """Of two measurements of the same kinds; where one is missing, the other."""
    return {kind: _mean(entry, after[kind]) for kind, entry in before.items()}


def _mean(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    if "median" not in a or "median" not in b:
        return a if "median" in a else b
    median = round((a["median"] + b["median"]) / 2, 1)
    return a | {"median": median, "best": max(a["best"], b["best"])}


def changed(before: Ceilings, after: Ceilings) -> dict[str, float]:
    """Kind -> by which share its median changed; kinds that both have."""
    both = [kind for kind in before if "median" in before[kind] and "median" in after[kind]]
    return {kind: after[kind]["median"] / before[kind]["median"] - 1 for kind in both}
