"""Two versions of Kvasir on one machine, in turns: what a change costs or brings.

    python -m bench.versions OLD_PYTHON NEW_PYTHON MODEL.gguf --turns 5 --output NAME

Each Python is that of an environment with its version. Writes bench/results/NAME.json: of each
figure the medians of both and the ratio of the new one to the old one; of rates more is better, of
seconds and bytes less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.figures.results import foreign
from kvasir.bench.fingerprint import fingerprint
from kvasir.bench.report import command_line, write

RESULTS = Path(__file__).parent / "results"
PROGRAM = "python -m bench.versions"
Figures = dict[str, float]


def latency(results: dict[str, Any]) -> Figures:
    """Tokens per second of one request."""
    return {name: each["tokens_per_second"]["median"] for name, each in results.items()}


def throughput(results: dict[str, Any]) -> Figures:
    """Tokens per second of 64 requests, and the part of the time that is spent outside of native
    code: what plans and books their steps."""
    return {
        "64 requests": results["output_tokens_per_second"]["median"],
        "64 requests, outside native": results["outside_native"],
    }


def start(results: dict[str, Any]) -> Figures:
    """Seconds from the start of a process to the first token."""
    return {
        f"start, {way}": each["seconds_to_first_token"]["median"] for way, each in results.items()
    }


def memory(results: dict[str, Any]) -> Figures:
    """Bytes of both processes of a server."""
    return {"memory beyond weights": results["beyond_weights"]}


READS: dict[str, Callable[[dict[str, Any]], Figures]] = {
    "latency": latency,
    "throughput": throughput,
    "start": start,
    "memory": memory,
}


def measure(python: Path, model: Path) -> dict[str, Any]:
    """One turn of a version, with the commit that it names itself by."""
    found: dict[str, Any] = {"figures": {}, "foreign": []}
    with tempfile.TemporaryDirectory() as folder:  # elsewhere than in a tree that has a kvasir
        output = Path(folder) / "result.json"
        for what, read in READS.items():
            command: list[str | Path] = [python, "-m", "kvasir", "bench", what, model]
            command += ["--output", output]
            if what != "memory":
                command += ["--repeat", "1"]
            if what in ("latency", "throughput"):
                command += ["--no-ceilings"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            document = json.loads(output.read_text())
            found["figures"] |= read(document["results"])
            found["foreign"].append(foreign(document["results"]))
            found["commit"] = document["machine"]["commit"]
    return found


def compare(old: list[Figures], new: list[Figures]) -> list[dict[str, Any]]:
    rows = []
    for name in old[0]:
        before = statistics.median(turn[name] for turn in old)
        after = statistics.median(turn[name] for turn in new)
        rows.append({"what": name, "old": before, "new": after, "ratio": round(after / before, 4)})
    return rows


def parser_of(program: str, about: str | None) -> argparse.ArgumentParser:
    """Of a command that compares two versions."""
    parser = argparse.ArgumentParser(
        prog=program, description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--commits",
        nargs=2,
        help="of both, where they are installed from wheels, which do not know",
    )
    parser.add_argument("--output", help="name below bench/results")
    return parser


def main() -> None:
    parser = parser_of(PROGRAM, __doc__)
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    pythons = {"old": args.old.absolute(), "new": args.new.absolute()}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    for turn in range(args.turns):
        order = list(pythons) if turn % 2 else list(reversed(pythons))
        for name in order:
            turns[name].append(measure(pythons[name], args.model.absolute()))
            print(name, turns[name][-1], file=sys.stderr, flush=True)
    known = [each[0]["commit"] for each in turns.values()]
    told = {
        "kind": "versions",
        "command": command_line(PROGRAM),
        "machine": fingerprint(),
        "model": args.model.name,
        "versions": dict(zip(turns, args.commits or known, strict=True)),
        "rows": compare(*([turn["figures"] for turn in each] for each in turns.values())),
        "turns": turns,
    }
    write(told, RESULTS / f"{args.output}.json" if args.output else None)


if __name__ == "__main__":
    main()
