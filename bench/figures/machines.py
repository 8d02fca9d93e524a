"""Which results are of which machine: figures of two processors are never one table's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
GENERATIONS = {
    "AuthenticAMD 25 1": "Zen 3",
    "AuthenticAMD 25 17": "Zen 4",
    "AuthenticAMD 26 2": "Zen 5",
}
"""By vendor, family and model; other processors go by these numbers."""


def machine_of(document: dict[str, Any]) -> str:
    """ "Zen 4 (AMD EPYC, AuthenticAMD 25 17), 2 CPUs, avx512_bf16"."""
    machine = document["machine"]
    family = machine["cpu_family"]
    known = GENERATIONS.get(family, "")
    name = f"{known} ({machine['cpu']}, {family})" if known else f"{machine['cpu']} ({family})"
    return f"{name}, {machine['cpus']} CPUs, {machine['isa_levels'][-1]}"


def machines() -> str:
    """A table: each machine with the results that were measured on it."""
    found: dict[str, list[str]] = {}
    for path in sorted(RESULTS.rglob("*.json")):
        document = json.loads(path.read_text("utf-8"))
        if isinstance(document, dict) and "cpu_family" in (document.get("machine") or {}):
            place = path.relative_to(RESULTS).with_suffix("")
            found.setdefault(machine_of(document), []).append(f"`{place}`")
    rows = [f"| {name} | {', '.join(found[name])} |" for name in sorted(found)]
    return "\n".join(["| machine | results |", "|---|---|", *rows]) + "\n"


MACHINES = {"machines": machines}
