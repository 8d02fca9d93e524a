"""Texts made vectors of in a second: Kvasir and llama-server, the same file, the same requests.

    python -m bench.peers.texts MODEL --llama-server PATH --output results.json

Each turn starts both servers, one after the other; every text is new, so nothing is cached. Clients
send requests of some texts each, all at once, as somebody does who indexes documents.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write

PROGRAM = "python -m bench.peers.texts"
PORT = 18321
START_SECONDS = 60
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "school")


@dataclass(frozen=True)
class Shape:
    """``n_words``: of a text, about as many tokens."""

    n_texts: int
    n_words: int
    n_together: int
    """Texts of a request."""
    n_clients: int

    def requests(self, rng: random.Random) -> list[list[str]]:
        texts = [" ".join(rng.choices(WORDS, k=self.n_words)) for _ in range(self.n_texts)]
        n = self.n_together
        return [texts[i : i + n] for i in range(0, len(texts), n)]


SHAPES = (
    Shape(256, 32, 16, 8),
    Shape(96, 128, 16, 6),
    Shape(32, 400, 4, 8),
    Shape(32, 32, 1, 1),
)


def commands(args: argparse.Namespace) -> dict[str, list[str]]:
    threads, port = str(args.threads), str(PORT)
    kvasir = [sys.executable, "-m", "kvasir", "serve", str(args.model), "--threads", threads]
    kvasir += [
        "--port",
        port,
        "--served-model-name",
        "m",
        "--max-model-len",
        "512",
        "--max-num-seqs",
        "64",
    ]
    peer = [str(args.llama_server), "-m", str(args.model), "-t", threads, "-tb", threads]
    peer += ["-c", "16384", "-np", "32", "-b", "2048", "-ub", "2048", "-fa", "on"]
    peer += ["--embeddings", "--pooling", "mean", "--no-webui", "--host", "127.0.0.1"]
    return {"Kvasir": kvasir, "llama-server": [*peer, "--port", port]}


def post(texts: Sequence[str]) -> list[list[float]]:
    body = {"input": texts, "model": "m", "pooling": "mean", "encoding_format": "float"}
    url = f"http://127.0.0.1:{PORT}/v1/embeddings"
    data = json.dumps(body).encode()
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=600) as answer:
        items = json.load(answer)["data"]
    return [item["embedding"] for item in sorted(items, key=lambda item: item["index"])]


def start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and process.poll() is None:
        with suppress(OSError):
            post(["warm"])
            return process
        time.sleep(0.1)
    process.kill()
    sys.exit(f"{command[0]} did not start in {START_SECONDS} s")


def rate(shape: Shape, seed: int) -> tuple[float, list[float]]:
    """Texts a second, and the vector of the first text."""
    requests = shape.requests(random.Random(seed))
    began = time.perf_counter()
    with ThreadPoolExecutor(shape.n_clients) as clients:
        found = list(clients.map(post, requests))
    return shape.n_texts / (time.perf_counter() - began), found[0][0]


def one_turn(
    name: str, command: Sequence[str], seed: int
) -> tuple[list[list[float]], list[dict[str, Any]]]:
    """The vector of the first text of each shape, and the rates."""
    first: list[list[float]] = []
    turns: list[dict[str, Any]] = []
    with Meter() as meter:
        process = start(command)
        try:
            for i, shape in enumerate(SHAPES):
                value, vector = rate(shape, seed + i)
                first.append(vector)
                turns.append({"engine": name, "shape": vars(shape), "texts_per_s": value})
                print(f"{name}: {shape}: {value:.1f} texts/s", file=sys.stderr, flush=True)
        finally:
            process.terminate()
            process.wait()
    return first, [{**turn, "foreign": meter.foreign} for turn in turns]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    dot = sum(x * y for x, y in zip(a, b, strict=True))
    return float(dot / (sum(x * x for x in a) * sum(y * y for y in b)) ** 0.5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--llama-server", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    results: list[dict[str, Any]] = []
    cosines: list[list[float]] = []
    machine = fingerprint()
    for turn in range(args.turns):
        first: dict[str, list[list[float]]] = {}
        for name, command in commands(args).items():
            first[name], turns = one_turn(name, command, 100 * turn)
            results += turns
        both = list(first.values())
        cosines.append([round(cosine(both[0][i], both[1][i]), 5) for i in range(len(SHAPES))])
        print("cosines", cosines[-1], file=sys.stderr)
    document: dict[str, Any] = {"kind": "texts", "command": command_line(PROGRAM)}
    document |= {
        "machine": machine,
        "model": args.model.name,
        "threads": args.threads,
        "cosines": cosines,
    }
    report(results, document, args.output)


def report(results: list[dict[str, Any]], document: dict[str, Any], output: Path | None) -> None:
    """Medians, and how many times as many texts."""
    rows = []
    for shape in map(vars, SHAPES):
        found = {
            name: statistics.median(
                x["texts_per_s"] for x in results if x["engine"] == name and x["shape"] == shape
            )
            for name in ("Kvasir", "llama-server")
        }
        rows.append({**shape, **found, "ratio": found["Kvasir"] / found["llama-server"]})
        print(json.dumps(rows[-1]), file=sys.stderr)
    write({**document, "rows": rows, "turns": results}, output)


if __name__ == "__main__":
    main()
