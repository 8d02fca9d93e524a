"""Requests that come at random moments: Kvasir and other servers, the same trace, in turns.

    python -m bench.peers.poisson --threads 2 --output NAME --kvasir MODEL.gguf
        --llama-server PATH MODEL.gguf  --openvino PYTHON FOLDER  --vllm PYTHON FOLDER

Writes bench/results/NAME.json. 64 streamed requests, Poisson, of 150 shared and 50 own tokens each,
64 tokens of output. Each server has answered the shared part twice before. Times are in
milliseconds: to the first token, between the chunks of a stream, and for each token after the
first, which is fair to servers that send several together.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers import servers
from bench.peers.servers import PORT, PeerServer
from kvasir.bench.ceilings import measure_ceilings
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write

RESULTS = Path(__file__).parents[1] / "results"
PROGRAM = "python -m bench.peers.poisson"
N_REQUESTS, N_SHARED, N_OWN, N_OUT = 64, 150, 50, 64
IDS = range(100, 49_000)
LIMIT_SECONDS = 240.0


@dataclass(frozen=True)
class Asked:
    at: float
    prompt: list[int]


@dataclass
class Heard:
    """Seconds since the request was sent."""

    times: list[float] = field(default_factory=list)
    n_tokens: int = 0
    error: str = ""


def trace(rate: float, seed: int) -> list[Asked]:
    rng = random.Random(seed)
    shared = [rng.randrange(IDS.start, IDS.stop) for _ in range(N_SHARED)]
    at, found = 0.0, []
    for _ in range(N_REQUESTS):
        at += rng.expovariate(rate)
        own = [rng.randrange(IDS.start, IDS.stop) for _ in range(N_OWN)]
        found.append(Asked(at, shared + own))
    return found


async def ask(prompt: Sequence[int], n_out: int) -> Heard:
    body = {
        "model": "m",
        "prompt": list(prompt),
        "max_tokens": n_out,
        "temperature": 0,
        "stream": True,
        "ignore_eos": True,
        "stream_options": {"include_usage": True},
    }
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Connection: close\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    heard, began = Heard(), time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", PORT)
    try:
        writer.write(head.encode() + data)
        status = await reader.readline()
        if b" 200 " not in status:
            heard.error = (status + await reader.read(500)).decode(errors="replace")
            return heard
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                _book(heard, json.loads(line[6:]), time.perf_counter() - began)
    except (OSError, ValueError) as error:
        heard.error = repr(error)
    finally:
        writer.close()
    return heard


def _book(heard: Heard, event: dict[str, Any], seconds: float) -> None:
    choices = event.get("choices") or []
    if choices and (choices[0].get("text") or not choices[0].get("finish_reason")):
        heard.times.append(seconds)
    usage = event.get("usage") or {}
    heard.n_tokens = usage.get("completion_tokens", heard.n_tokens)


async def run(asked: Sequence[Asked]) -> list[Heard]:
    began = time.perf_counter()

    async def one(each: Asked) -> Heard:
        await asyncio.sleep(max(0.0, began + each.at - time.perf_counter()))
        async with asyncio.timeout(LIMIT_SECONDS):
            return await ask(each.prompt, N_OUT)

    return await asyncio.gather(*map(one, asked))


def summarize(heard: Sequence[Heard]) -> dict[str, Any]:
    """Raises SystemExit when a request failed or ended early."""
    bad = [x for x in heard if x.error or x.n_tokens != N_OUT]
    if bad:
        sys.exit(f"{len(bad)} requests failed: {bad[0].error or bad[0].n_tokens}")
    gaps = [b - a for x in heard for a, b in itertools.pairwise(x.times)]
    each = [(x.times[-1] - x.times[0]) / (x.n_tokens - 1) for x in heard]
    firsts = [x.times[0] for x in heard]
    return {
        name: {"p50": quantile(values, 0.5), "p99": quantile(values, 0.99)}
        for name, values in (("ttft", firsts), ("itl", gaps), ("tpot", each))
    }


def quantile(values: Sequence[float], part: float) -> float:
    """In milliseconds, between the two nearest."""
    ordered = sorted(values)
    place = part * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return round(1e3 * (ordered[low] + (ordered[high] - ordered[low]) * (place - low)), 2)


def measure(server: PeerServer, rate: float, seed: int) -> dict[str, Any]:
    asked = trace(rate, seed)
    with Meter() as meter, server.running():  # of a server that has ended CPU time is known
        for _ in range(2):
            warm = asyncio.run(ask(asked[0].prompt[:N_SHARED], 4))
            if warm.error:
                sys.exit(f"{server.name}: {warm.error}")
        heard = asyncio.run(run(asked))
    return {**summarize(heard), "foreign": meter.foreign}


def medians(turns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: {q: statistics.median(turn[name][q] for turn in turns) for q in ("p50", "p99")}
        for name in ("ttft", "itl", "tpot")
    }


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=4.0, help="requests a second")
    servers.with_servers(parser, "openvino", "vllm")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    machine, ceilings = fingerprint(), measure_ceilings(args.threads)
    found = [servers.kvasir(args.kvasir, args.threads)]
    found += [servers.llama_server(path, model, args.threads) for path, model in args.llama_server]
    found += [servers.openvino(path, model, args.threads) for path, model in args.openvino]
    found += [servers.vllm(path, model, args.threads) for path, model in args.vllm]
    engines: list[dict[str, Any]] = [
        {"name": server.name, "version": server.version, "turns": []} for server in found
    ]
    for turn in range(args.turns):
        for server, kept in zip(found, engines, strict=True):
            kept["turns"].append(measure(server, args.rate, seed=7 + turn))
            print(server.name, kept["turns"][-1], file=sys.stderr, flush=True)
    for kept in engines:
        kept["median"] = medians(kept["turns"])
    told = {
        "kind": "poisson",
        "command": command_line(PROGRAM),
        "machine": machine,
        "ceilings": ceilings,
        "load": {
            "requests": N_REQUESTS,
            "per_second": args.rate,
            "shared": N_SHARED,
            "own": N_OWN,
            "out": N_OUT,
        },
        "threads": args.threads,
        "engines": engines,
    }
    write(told, RESULTS / f"{args.output}.json")


if __name__ == "__main__":
    main()
