"""Tool calls of BFCL: Kvasir and llama-server on the same file.

    python -m bench.peers.calls BFCL_EVAL.whl MODEL.gguf --llama-server PATH --threads 2
        --each 50 --output NAME

BFCL_EVAL.whl: the package ``bfcl-eval``, or a folder with its content. Writes
bench/results/NAME.json: by server and category the share of finished answers whose calls are all
valid for their tools, and the share that is right. Under ``required`` llama-server is asked as
bench/peers/llama_calls.py says; under ``auto`` it answers chats like any other. Nothing is timed:
the machine need not be quiet. What was found is kept in bench/results/NAME.part.json meanwhile:
whoever starts again goes on behind it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
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
    """What is known of each server so far, by category."""

    def __init__(self, path: Path, asked: str) -> None:
        self.path = path
        self._found: Json = {"asked": asked, "engines": []}
        if path.exists() and (kept := json.loads(path.read_text("utf-8")))["asked"] == asked:
            self._found = kept

    def of(self, server: PeerServer) -> Json:
        who = {"name": server.name, "version": server.version}
        for one in self._found["engines"]:
            if who.items() <= one.items():
                return dict(one)
        return who

    def keep(self, engine: Json) -> None:
        others = [one for one in self._found["engines"] if one["name"] != engine["name"]]
        self._found["engines"] = [*others, engine]
        write(self._found, self.path)


def measure(
    server: PeerServer, one: Asker, asked: Mapping[str, list[Entry]], choice: str, part: Part
) -> Json:
    engine = part.of(server)
    left = {name: some for name, some in asked.items() if name not in engine}
    if not left:
        return engine
    with server.running():
        for category, some in left.items():
            said, _ = ask_all([body(entry, choice) for entry in some], STREAMS, one)
            engine[category] = judged(some, said)
            part.keep(engine)
            print(server.name, category, engine[category], file=sys.stderr, flush=True)
    return engine


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
    what = f"{args.model.name}, {args.each} of each, {args.tool_choice}"
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
    part.path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
