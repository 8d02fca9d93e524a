"""Tool calls of BFCL: Kvasir and llama-server on the same file.

    python -m bench.peers.calls BFCL_EVAL.whl MODEL.gguf --llama-server PATH --threads 2
        --each 50 --output NAME

BFCL_EVAL.whl: the package ``bfcl-eval``, or a folder with its content. Writes
bench/results/NAME.json: by server and category the share of finished answers whose calls are all
valid for their tools, and the share that is right. Under ``required`` llama-server is asked as
bench/peers/llama_calls.py says; under ``auto`` it answers chats like any other. Nothing is timed:
the machine need not be quiet. Answers are kept in bench/results/NAME.part.json as they come:
whoever starts again, with more entries, too, goes on behind them, and asks for those that failed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers import servers
from bench.peers.asking import Said, ask, ask_all
from bench.peers.bfcl import CATEGORIES, Entry, entries, is_right, wrong
from bench.peers.llama_calls import VERBOSE, ask_held
from bench.peers.servers import CONTEXT, PeerServer
from kvasir.bench.fingerprint import fingerprint
from kvasir.bench.report import command_line, write

RESULTS = Path(__file__).parents[1] / "results"
PROGRAM = "python -m bench.peers.calls"
N_OUT = 400
STREAMS = 4
PIECE = 8
"""Entries between two times that answers are kept."""

Json = dict[str, Any]
Asker = Callable[[Json], Said]


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
    right = {entry.id for entry, one in finished if is_right(one.calls, entry.truth)}
    return {
        "asked": len(asked),
        "finished": len(finished),
        "without_call": sum(not one.calls for _, one in finished),
        "valid_share": round(1 - len(faults) / len(finished), 4) if finished else None,
        "right_share": round(len(right) / len(asked), 4),
        "not_right": [entry.id for entry in asked if entry.id not in right],
        "faults": faults,
        "failed": {
            entry.id: one.error for entry, one in zip(asked, said, strict=True) if one.error
        },
    }


class Part:
    """The answers so far, by server and entry."""

    def __init__(self, path: Path, asked: str) -> None:
        self._path = path
        self._kept: Json = {"asked": asked}
        if path.exists() and (kept := json.loads(path.read_text("utf-8")))["asked"] == asked:
            self._kept = kept

    def of(self, server: PeerServer) -> dict[str, Said]:
        kept = self._kept.get(f"{server.name}, {server.version}", {})
        return {
            name: Said(**{**one, "calls": tuple((called, given) for called, given in one["calls"])})
            for name, one in kept.items()
        }

    def keep(self, server: PeerServer, said: Mapping[str, Said]) -> None:
        """Those that did not fail: others are asked for again."""
        kept = self._kept.setdefault(f"{server.name}, {server.version}", {})
        kept.update({name: asdict(one) for name, one in said.items() if not one.error})
        write(self._kept, self._path)


def measure(
    server: PeerServer, one: Asker, asked: Mapping[str, list[Entry]], choice: str, part: Part
) -> Json:
    known = part.of(server)
    left = [entry for some in asked.values() for entry in some if entry.id not in known]
    if left:
        with server.running():
            for i in range(0, len(left), PIECE):
                some = left[i : i + PIECE]
                said, _ = ask_all([body(entry, choice) for entry in some], STREAMS, one)
                told = {entry.id: answer for entry, answer in zip(some, said, strict=True)}
                part.keep(server, told)
                known |= told
                print(f"{server.name}: {i + len(some)} of {len(left)}", file=sys.stderr, flush=True)
    found = {name: judged(some, [known[x.id] for x in some]) for name, some in asked.items()}
    return {"name": server.name, "version": server.version, **found}


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
    asked = {name: entries(args.data, name, args.each) for name in CATEGORIES}
    what = f"{args.model.name}, {args.tool_choice}"
    part = Part(RESULTS / f"{args.output}.part.json", what)
    found: list[tuple[PeerServer, Asker]] = [(servers.kvasir(args.model, args.threads), ask)]
    if args.llama_server:
        slots = {"n_slots": STREAMS, "n_context": CONTEXT}
        binary, model, n = args.llama_server, args.model, args.threads
        theirs = servers.llama_server(binary, model, n, *VERBOSE, **slots)
        found.append((theirs, ask_held if args.tool_choice == "required" else ask))
    engines = [measure(server, one, asked, args.tool_choice, part) for server, one in found]
    told = {
        "kind": "calls",
        "command": command_line(PROGRAM),
        "machine": fingerprint(),
        "model": args.model.name,
        "threads": args.threads,
        "tool_choice": args.tool_choice,
        "tokens_at_most": N_OUT,
        "engines": engines,
    }
    write(told, RESULTS / f"{args.output}.json")


if __name__ == "__main__":
    main()
