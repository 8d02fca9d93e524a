"""Every cause of a slow answer, done to a real server, and what that says of it.

python -m tests.whys [MODEL] [--causes slots,disk] [--runs 20] --output bench/results/NAME.json

A cause is told right where it is named and its seconds are within a tenth of what the client
measured. Causes that were not asked for stay as the file has them; each names its commit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line
from kvasir.weights.default import default_model
from tests.e2e.harness import Server, running_server
from tests.e2e.toy_model import write_toy_model
from tests.whys.asking import LONGEST, ask, choices
from tests.whys.causes import (
    CAUSES,
    DISK,
    IDLE,
    N_SLOTS,
    PLENTY,
    SCARCE,
    SOCKET,
    Injection,
    Scene,
)

PROGRAM = "python -m tests.whys"
SIZES = {"threads": 2, "max_num_seqs": N_SLOTS, "tuning": "cached"}
SMALL = {**SIZES, "max_model_len": 512, "kv_memory": "12MiB", "kv_cache_dtype": "bfloat16"}
"""544 tokens."""
WITHIN = 0.1
N_WARM = 60
"""Tokens before all: what steps cost is known from these, and from longer prompts."""


@contextmanager
def servers(model: Path, folder: Path, causes: dict[str, Injection]) -> Iterator[Server]:
    """The one that ``causes`` are done to."""
    if causes is SOCKET:
        path = str(folder / "socket")
        with running_server(write_toy_model(folder / "toy"), uds=path) as server:
            server.http = httpx.Client(transport=httpx.HTTPTransport(uds=path), timeout=LONGEST)
            yield server
        return
    options: dict[str, Any] = {"executor": "cpu", "engine": {**SIZES, "max_model_len": 2048}}
    if causes is SCARCE:
        options["engine"] = SMALL
    if causes is DISK:
        os.environ["SLOW_DISK"] = str(folder / "seconds")
        (folder / "seconds").write_text("0")
        options["engine"] = {**SMALL, "kv_disk": str(folder / "disk"), "kv_disk_size": "1GiB"}
        options["module"] = "tests.whys.slow_disk"
    if causes is IDLE:
        options["sleep_idle_seconds"] = 1
    with running_server(model, **options) as server:
        warm(server)
        yield server


def warm(server: Server) -> None:
    draw = random.Random(0)
    for n_prompt in (20, 50, 100, 200, 300):
        ask(server, [draw.randrange(1000, 40_000) for _ in range(n_prompt)], N_WARM)


def run(name: str, inject: Injection, server: Server, folder: Path, seed: int) -> dict[str, Any]:
    """What was told, beside what was done."""
    slowed = inject(Scene(server, random.Random(f"{name} {seed}"), folder))
    found = choices(server, slowed.heard)
    last = max(found, key=lambda choice: choice["seconds"])  # of two, who ended last
    told = last if name == "reader" else found[0]
    parts = {part["cause"]: round(part["seconds"], 4) for part in told["parts"]}
    said = {"cause": told["cause"], "truth": round(slowed.truth, 4), "parts": parts}
    print(name, seed, said, file=sys.stderr, flush=True)
    return said


def judged(name: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """How many were named, and how far the seconds were off."""
    wanted = None if name == "nothing" else name
    named = sum(run["cause"] == wanted for run in runs)
    told: dict[str, Any] = {"runs": len(runs), "named": named}
    if wanted is not None:
        errors = [run["parts"].get(wanted, 0.0) / run["truth"] - 1 for run in runs]
        told["within"] = sum(abs(error) <= WITHIN for error in errors)
        told["median_error"] = round(statistics.median(errors), 4)
        told["worst_error"] = round(max(errors, key=abs), 4)
    return {**told, "each": runs}


def measured(model: Path, wanted: list[str], n_runs: int) -> dict[str, Any]:
    found = {}
    for causes in (PLENTY, SCARCE, DISK, IDLE, SOCKET):
        names = [name for name in causes if name in wanted]
        if not names:
            continue
        with (
            Meter() as meter,
            tempfile.TemporaryDirectory() as folder,
            servers(model, Path(folder), causes) as server,
        ):
            for name in names:
                inject = causes[name]
                runs = [run(name, inject, server, Path(folder), i) for i in range(n_runs)]
                found[name] = judged(name, runs)
                said = {key: value for key, value in found[name].items() if key != "each"}
                print(f"{name:16}", said, file=sys.stderr, flush=True)
        for name in names:
            found[name]["beside"] = meter.foreign  # neighbours that were put there, too
    return found


def merged(path: Path | None, commit: str, found: dict[str, Any]) -> dict[str, Any]:
    """With what the file has of others."""
    before: dict[str, Any] = {}
    if path is not None and path.exists():
        document = json.loads(path.read_text(encoding="utf-8"))
        of_file = {"commit": document["machine"]["commit"]}
        before = {name: of_file | x for name, x in document["results"]["causes"].items()}
    found = {name: x | {"commit": commit} for name, x in found.items()}
    causes = {name: (before | found)[name] for name in CAUSES if name in before | found}
    right = sum(x["named"] for x in causes.values()) / sum(x["runs"] for x in causes.values())
    delays = [x for x in causes.values() if "within" in x]
    within = sum(x["within"] for x in delays) / max(1, sum(x["runs"] for x in delays))
    return {"named": round(right, 4), "within": round(within, 4), "causes": causes}


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", help="by default the small one")
    parser.add_argument("--causes", default=",".join(CAUSES))
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    machine = fingerprint()
    model = args.model or default_model()
    found = measured(model, args.causes.split(","), args.runs)
    told = {
        "kind": "whys",
        "command": command_line(PROGRAM),
        "machine": machine,
        "model": model.name,
        "results": merged(args.output, machine["commit"], found),
    }
    text = json.dumps(told, indent=2) + "\n"
    args.output.write_text(text, encoding="utf-8") if args.output else sys.stdout.write(text)


if __name__ == "__main__":
    main()
