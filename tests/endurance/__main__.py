"""Faults for an hour, or ``--seconds``, against a real server of a real model.

python -m tests.endurance kills MODEL --output bench/results/endurance-kills.json
python -m tests.endurance hangs MODEL --output bench/results/endurance-hangs.json
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from kvasir.bench.fingerprint import fingerprint
from kvasir.bench.report import command_line
from kvasir.weights.default import default_model
from tests.e2e.toy_model import write_toy_model
from tests.endurance import hangs, kills, requests

PROGRAM = "python -m tests.endurance"


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("what", choices=("kills", "hangs", "requests"))
    parser.add_argument("model", type=Path, nargs="?", help="by default the small one")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--niceness", type=int, default=0, help="of the server, with hangs")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    machine = fingerprint()
    with tempfile.TemporaryDirectory() as folder:
        name, results = measure(args, Path(folder))
    told = {
        "kind": f"endurance {args.what}",
        "command": command_line(PROGRAM),
        "machine": machine,
        "model": name,
        "results": results,
    }
    text = json.dumps(told, indent=2) + "\n"
    args.output.write_text(text) if args.output else sys.stdout.write(text)


def measure(args: argparse.Namespace, folder: Path) -> tuple[str, dict[str, Any]]:
    """The model's name, and what was found."""
    if args.what == "requests":
        toy = write_toy_model(folder / "toy")
        return "toy_model of tests", requests.run(toy, args.requests, args.threads)
    model = args.model or default_model()
    if args.what == "kills":
        return model.name, kills.run(model, args.seconds, args.threads)
    clock = jumping_clock(folder)
    return model.name, hangs.run(model, args.seconds, args.threads, args.niceness, clock)


def jumping_clock(folder: Path) -> Path:
    """The file that servers started from now on read their wall clock's offset from."""
    library, path = folder / "jump.so", folder / "offset"
    source = Path(__file__).with_name("jump.c")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    path.write_text("0\n")
    os.environ |= {"LD_PRELOAD": str(library), "CLOCK_OFFSET": str(path)}
    return path


if __name__ == "__main__":
    main()
