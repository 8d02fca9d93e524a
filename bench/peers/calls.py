"""Tool calls of BFCL: Kvasir and llama-server on the same file.

    python -m bench.peers.calls BFCL_EVAL.whl MODEL.gguf --llama-server PATH --threads 2
        --each 50 --output NAME

BFCL_EVAL.whl: the package ``bfcl-eval``, or a folder with its content. Writes
bench/results/NAME.json: by server and category the share of finished answers whose calls are all
valid for their tools, and the share that is right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.peers import servers
from bench.peers.asking import Said, ask_all
from bench.peers.bfcl import CATEGORIES, Entry, entries, is_right, wrong
from bench.peers.servers import CONTEXT, PeerServer
from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write

RESULTS = Path(__file__).parents[1] / "results"
PROGRAM = "python -m bench.peers.calls"
N_OUT = 400
STREAMS = 4

Json = dict[str, Any]


def body(entry: Entry, choice: str) -> Json:
    return {
        "messages": entry.messages,
        "tools": entry.tools,
        "tool_choice": choice,
        "parallel_tool_calls": len(entry.truth) > 1,
        "max_tokens": N_OUT,
        "temperature": 0,
    }


def judged(asked: Sequence[Entry], said: Sequence[Said]) -> Json:
    """Shares of valid answers, of those finished, and of right ones, of all; everything that is not
    valid."""
    finished = [
        (entry, one)
        for entry, one in zip(asked, said, strict=True)
        if not one.error and one.finish != "length"
    ]
    faults = {
        entry.id: found
        for entry, one in finished
        for found in [next(filter(None, (wrong(call, entry.tools) for call in one.calls)), None)]
        if found is not None
    }
    n_right = sum(is_right(one.calls, entry.truth) for entry, one in finished)
    return {
        "asked": len(asked),
        "finished": len(finished),
        "without_call": sum(not one.calls for _, one in finished),
        "valid_share": round(1 - len(faults) / len(finished), 4) if finished else None,
        "right_share": round(n_right / len(asked), 4),
        "faults": faults,
        "failed": {
            entry.id: one.error for entry, one in zip(asked, said, strict=True) if one.error
        },
    }


def measure(server: PeerServer, asked: Mapping[str, list[Entry]], choice: str) -> Json:
    found = {}
    with Meter() as meter, server.running():
        for category, some in asked.items():
            said, seconds = ask_all([body(entry, choice) for entry in some], STREAMS)
            found[category] = {**judged(some, said), "seconds": round(seconds, 2)}
            print(server.name, category, found[category], file=sys.stderr, flush=True)
    return {"name": server.name, "version": server.version, **found, "foreign": meter.foreign}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--each", type=int, default=50, help="entries of a category")
    parser.add_argument("--tool-choice", default="required", choices=("auto", "required"))
    parser.add_argument("--output", required=True, help="name below bench/results")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    machine, ceilings = fingerprint(), measure_ceilings(args.threads)
    asked = {name: entries(args.data, name, args.each) for name in CATEGORIES}
    found = [servers.kvasir(args.model, args.threads)]
    if args.llama_server:
        binary, model = args.llama_server, args.model
        found.append(servers.llama_server(binary, model, args.threads, STREAMS, CONTEXT))
    engines = [measure(server, asked, args.tool_choice) for server in found]
    told = {
        "kind": "calls",
        "command": command_line(PROGRAM),
        "machine": machine,
        "ceilings": ceilings,
        "model": args.model.name,
        "threads": args.threads,
        "tool_choice": args.tool_choice,
        "engines": engines,
    }
    write(told, RESULTS / f"{args.output}.json")


if __name__ == "__main__":
    main()
