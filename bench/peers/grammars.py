"""Answers under JSON schemas: Kvasir and other servers, the same requests, in turns.

    python -m bench.peers.grammars SCHEMAS --threads 2 --output NAME --kvasir MODEL.gguf
        --llama-server PATH MODEL.gguf  --vllm PYTHON FOLDER

SCHEMAS: gzipped lines of JSON with ``id``, ``schema`` and ``tests``, as of MaskBench. Writes
bench/results/NAME.json. Each server is asked once for each schema: what it refuses. Those that
none refuses are answered at temperature 1, one stream and 64; then the same prompts without a
schema, each for as many tokens as it was answered with. What is finished is held against
``jsonschema``. vLLM runs twice, with masks of xgrammar and of guidance. What was found is kept in
bench/results/NAME.part.json meanwhile: whoever starts again goes on behind it, and with
``--turns 0`` there are refusals only, for which a machine need not be quiet.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Collection, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from bench.peers import servers
from bench.peers.asking import Said, ask_all
from bench.peers.servers import PeerServer
from bench.schemas.cases import Case, sample_cases, spread
from bench.schemas.finished import judged, seed_of
from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write

RESULTS = Path(__file__).parents[1] / "results"
PROGRAM = "python -m bench.peers.grammars"
N_OUT = 96
N_WARM = 16
"""Outputs of the round before: with them the last block of each prompt is in a cache of blocks, and
no arm computes it alone."""
STREAMS = {1: 8, 64: 64}
"""Requests, by how many there are at a time."""
MASKERS = ("xgrammar", "guidance")
"""Of vLLM."""

Json = dict[str, Any]


def body(case: Case, n_out: int, *, is_held: bool) -> Json:
    """A request for ``n_out`` tokens at most; without the schema for exactly as many."""
    asked: Json = {
        "messages": [{"role": "user", "content": f"Write JSON about {case.name}."}],
        "max_tokens": n_out,
        "temperature": 1.0,
        "seed": seed_of(case.name),
    }
    if not is_held:
        return {**asked, "ignore_eos": True}
    named = {"name": "answer", "schema": case.schema}
    return {**asked, "response_format": {"type": "json_schema", "json_schema": named}}


def refusals(server: PeerServer, cases: Sequence[Case]) -> dict[str, str]:
    """Why, by the name of a schema."""
    with server.running():
        said, _ = ask_all([body(case, 1, is_held=True) for case in cases], 8)
    return {case.name: one.error for case, one in zip(cases, said, strict=True) if one.error}


def measure(server: PeerServer, cases: Sequence[Case]) -> Json:
    """Rates by number of streams, and what became of the answers."""
    with Meter() as meter, server.running():  # of a server that has ended CPU time is known
        ask_all([body(case, N_WARM, is_held=True) for case in cases], 8)
        points = [_point(server, cases, n, n_asked) for n, n_asked in STREAMS.items()]
    return {"points": points, "foreign": meter.foreign}


def _point(server: PeerServer, cases: Sequence[Case], n_streams: int, n_asked: int) -> Json:
    chosen = list(islice(cycle(cases), n_asked))
    bodies = [body(case, N_OUT, is_held=True) for case in chosen]
    held, seconds = ask_all(_without(server.cannot, bodies), n_streams)
    lengths = [max(one.n_tokens, 1) for one in held]
    bodies = [body(case, n, is_held=False) for case, n in zip(chosen, lengths, strict=True)]
    free, free_seconds = ask_all(_without(server.cannot, bodies), n_streams)
    if failed := [one.error for one in free if one.error]:
        sys.exit(f"{len(failed)} requests without a schema failed: {failed[0]}")
    return {
        "streams": n_streams,
        **outcomes(chosen, held),
        **rates(held, seconds, free, free_seconds),
    }


def _without(fields: Collection[str], bodies: Sequence[Json]) -> list[Json]:
    return [{name: x for name, x in one.items() if name not in fields} for one in bodies]


def rates(held: Sequence[Said], seconds: float, free: Sequence[Said], free_seconds: float) -> Json:
    """Tokens a second with schemas and without, and the share that schemas lose."""
    rate = sum(one.n_tokens for one in held) / seconds
    free_rate = sum(one.n_tokens for one in free) / free_seconds
    return {
        "tokens_per_second": round(rate, 1),
        "free_tokens_per_second": round(free_rate, 1),
        "lost": round(1 - rate / free_rate, 4),
    }


def outcomes(cases: Sequence[Case], said: Sequence[Said]) -> Json:
    """How many answers finished, are not valid, failed."""
    found = [
        judged(case, one.text, one.finish, one.n_tokens)
        for case, one in zip(cases, said, strict=True)
    ]
    faults = {one.id: one.fault for one in found if one.fault is not None}
    return {
        "requests": len(said),
        "finished": sum(one.finish == "stop" for one in said),
        "invalid": sum(one.fault is not None for one in found),
        "faults": faults,
        "failed": [one.error for one in said if one.error],
    }


def summary(engines: Sequence[Json]) -> list[Json]:
    """Medians by streams; how many times the best of the others the first engine is."""
    rows = []
    for i, n_streams in enumerate(STREAMS):
        row: Json = {"streams": n_streams}
        for engine in engines:
            points = [turn["points"][i] for turn in engine["turns"]]
            row[engine["name"]] = {
                name: statistics.median(point[name] for point in points)
                for name in ("tokens_per_second", "free_tokens_per_second", "lost")
            }
            row[engine["name"]]["invalid"] = sum(point["invalid"] for point in points)
            row[engine["name"]]["finished"] = sum(point["finished"] for point in points)
        own, *others = (row[engine["name"]]["tokens_per_second"] for engine in engines)
        row["over_best"] = round(own / max(others), 3) if others else None
        rows.append(row)
    return rows


class Part:
    """What is known of each server so far. Others' schemas, servers and versions begin anew."""

    def __init__(self, path: Path, asked: str) -> None:
        self.path = path
        self._asked = asked
        self._kept: list[Json] = []
        if path.exists():
            found = json.loads(path.read_text("utf-8"))
            self._kept = found["engines"] if found["asked"] == asked else []

    def of(self, server: PeerServer, cases: Sequence[Case]) -> Json:
        """Name, version, what it refuses, and the turns that it had."""
        who = {"name": server.name, "version": server.version}
        for one in self._kept:
            if who.items() <= one.items():
                return one
        found = {**who, "refused": refusals(server, cases), "turns": []}
        n_refused = len(found["refused"])
        print(f"{server.name}: {n_refused} of {len(cases)} refused", file=sys.stderr, flush=True)
        self._kept.append(found)
        self.keep()
        return found

    def keep(self) -> None:
        write({"asked": self._asked, "engines": self._kept}, self.path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("schemas", type=Path)
    parser.add_argument("--limit", type=int, default=64, help="schemas, spread over the file")
    servers.with_servers(parser, "vllm")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    machine, ceilings = fingerprint(), measure_ceilings(args.threads)
    found = [servers.kvasir(args.kvasir, args.threads)]
    found += [servers.llama_server(path, model, args.threads) for path, model in args.llama_server]
    for python, model in args.vllm:
        found += [servers.vllm(python, model, args.threads, name) for name in MASKERS]
    cases = spread(list(sample_cases(args.schemas)), args.limit)
    part = Part(RESULTS / f"{args.output}.part.json", f"{args.schemas.name}, {len(cases)} schemas")
    engines = [part.of(server, cases) for server in found]
    common = [case for case in cases if all(case.name not in one["refused"] for one in engines)]
    if not common:
        sys.exit("no schema is taken by all")
    for i in range(args.turns):
        for server, kept in zip(found, engines, strict=True):
            if len(kept["turns"]) == i:
                kept["turns"].append(measure(server, common))
                part.keep()
                print(server.name, kept["turns"][-1], file=sys.stderr, flush=True)
    if not args.turns:
        return
    told = {
        "kind": "grammars",
        "command": command_line(PROGRAM),
        "machine": machine,
        "ceilings": ceilings,
        "schemas": {"asked": len(cases), "taken_by_all": len(common)},
        "tokens_at_most": N_OUT,
        "threads": args.threads,
        "median": summary(engines),
        "engines": engines,
    }
    write(told, RESULTS / f"{args.output}.json")
    part.path.unlink()


if __name__ == "__main__":
    main()
