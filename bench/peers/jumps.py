"""What jump-ahead saves of the tool calls of BFCL, one stream.

    python -m bench.peers.jumps BFCL_EVAL.whl MODEL.gguf --threads 2 --output NAME

BFCL_EVAL.whl: the package ``bfcl-eval``, or a folder with its content. Writes
bench/results/NAME.json. Two servers, one without jump-ahead, are asked each call one after the
other, so that both meet the same minutes of the machine. Grammars and the blocks of prompts are
known to them before, so that what is timed is decoding.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from bench.peers import servers
from bench.peers.asking import ask, metric
from bench.peers.bfcl import CATEGORIES, Call, entries
from bench.peers.calls import body
from bench.peers.servers import PORT
from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write

RESULTS = Path(__file__).parents[1] / "results"
PROGRAM = "python -m bench.peers.jumps"
STEPS = "kvasir_iterations_total"
PORTS = {"off": PORT, "on": PORT + 1}

Json = dict[str, Any]


def turn(bodies: Sequence[Json], i_turn: int) -> Json:
    """Seconds, steps and calls of each server, which takes the lead in every other call."""
    before = {name: metric(STEPS, port) for name, port in PORTS.items()}
    seconds = dict.fromkeys(PORTS, 0.0)
    calls: dict[str, list[tuple[Call, ...]]] = {name: [] for name in PORTS}
    for i, one in enumerate(bodies, i_turn):
        for name in list(PORTS)[:: 1 if i % 2 else -1]:
            began = time.perf_counter()
            said = ask(one, PORTS[name])
            seconds[name] += time.perf_counter() - began
            if said.error:
                sys.exit(f"a call failed: {said.error}")
            calls[name].append(said.calls)
    return {
        "seconds": seconds,
        "steps": {name: metric(STEPS, port) - before[name] for name, port in PORTS.items()},
        "is_same": calls["on"] == calls["off"],
    }


def saved(turns: Sequence[Mapping[str, Any]]) -> Json:
    """What jump-ahead saves, and the share of the saved steps that is saved time; of times the
    medians of the turns."""
    steps = 1 - median(x["steps"]["on"] / x["steps"]["off"] for x in turns)
    faster = median(x["seconds"]["off"] / x["seconds"]["on"] for x in turns)
    return {
        "faster": round(faster, 3),
        "steps_saved": round(steps, 4),
        "time_saved": round(1 - 1 / faster, 4),
        "saved_as_time": round((1 - 1 / faster) / steps, 4) if steps > 0 else None,
        "is_same": all(x["is_same"] for x in turns),
    }


def measure(model: Path, threads: int, bodies: Sequence[Json], n_turns: int) -> Json:
    options = {"off": ("--no-jump-ahead",), "on": ()}
    with Meter() as meter, ExitStack() as stack:
        for name, port in PORTS.items():
            few = (*options[name], "--max-num-seqs", "1")
            stack.enter_context(servers.kvasir(model, threads, *few, port=port).running())
            for one in bodies:  # compiles, and computes the prompt
                ask({**one, "max_tokens": 1}, port)
        turns = [turn(bodies, i) for i in range(n_turns)]
    return {**saved(turns), "calls": len(bodies), "turns": turns, "foreign": meter.foreign}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--each", type=int, default=3, help="entries of a category")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--output", required=True, help="name below bench/results")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    machine, ceilings = fingerprint(), measure_ceilings(args.threads)
    asked = [entry for name in CATEGORIES for entry in entries(args.data, name, args.each)]
    bodies = [body(entry, "required") for entry in asked]
    found = measure(args.model, args.threads, bodies, args.turns)
    print({name: value for name, value in found.items() if name != "turns"}, file=sys.stderr)
    told = {
        "kind": "jumps",
        "command": command_line(PROGRAM),
        "machine": machine,
        "ceilings": ceilings,
        "model": args.model.name,
        "threads": args.threads,
        "jump_ahead": found,
    }
    write(told, RESULTS / f"{args.output}.json")


if __name__ == "__main__":
    main()
