"""What it costs 64 streams that 8 dashboards and 2 ``kvasir top`` look at them.

    python -m bench.serving.watched --output bench/results/watched-2cores.json

Turns without and with, one after the other on one server; dashboards ask twice a second, as the
page does. Who looks runs on the same machine: once beside the server as its equal, and once behind
it, at the lowest priority, since who looks has a machine of his own and only what the server does
for him is its cost.
"""

from __future__ import annotations

import argparse
import os
import pty
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write
from kvasir.weights.default import default_model
from tests.e2e.harness import Server, running_server
from tests.whys.asking import Asking

PROGRAM = "python -m bench.serving.watched"
N_STREAMS, N_PROMPT = 64, 32
N_DASHBOARDS, N_TOPS = 8, 2
EVERY = 0.5
NICENESS = {"beside": 0, "behind": 19}
"""Of who looks."""


def turn(server: Server, n_tokens: int, seed: int) -> dict[str, float]:
    """Tokens a second, the 99th percentile of the gaps in milliseconds, and what the server's
    processes took of a token, microseconds of CPU time."""
    draw = random.Random(seed)
    own = (psutil.Process(server.process.pid), psutil.Process(server.engine_pid()))
    before, began = [spent([each]) for each in own], time.monotonic()
    asking = []
    for _ in range(N_STREAMS):
        words = [draw.randrange(1000, 40_000) for _ in range(N_PROMPT)]
        asking.append(Asking(server, words, n_tokens))
    heard = [each.done() for each in asking]
    seconds = max(each.ended for each in heard) - began
    api, engine = (spent([each]) - x for each, x in zip(own, before, strict=True))
    gaps = [b - a for x in heard for a, b in zip(x.moments, x.moments[1:], strict=False)]
    n = N_STREAMS * n_tokens
    return {
        "tokens_per_second": round(n / seconds, 1),
        "gap_p99_ms": round(1e3 * statistics.quantiles(gaps, n=100)[98], 2),
        "api_us": round(1e6 * api / n, 1),
        "server_us": round(1e6 * (api + engine) / n, 1),
    }


def dashboards(port: int, niceness: int) -> None:
    """All of them, in this process, until it is ended; they only read."""
    os.nice(niceness)

    def look() -> None:
        connection = HTTPConnection("127.0.0.1", port)
        while True:
            connection.request("GET", "/v1/dashboard")
            with connection.getresponse() as answer:
                if answer.status != 200:
                    raise RuntimeError(answer.read().decode())
                answer.read()
            time.sleep(EVERY)

    threads = [threading.Thread(target=look) for _ in range(N_DASHBOARDS)]
    for thread in threads:
        thread.start()
        time.sleep(EVERY / N_DASHBOARDS)  # not all at once
    for thread in threads:
        thread.join()


@contextmanager
def watching(server: Server, niceness: int) -> Iterator[list[psutil.Process]]:
    """The process of the dashboards, and the terminals."""
    pages = get_context("spawn").Process(target=dashboards, args=(server.port, niceness))
    pages.start()
    tops = [terminal(server) for _ in range(N_TOPS)]
    found = [psutil.Process(pid) for pid in (pages.pid, *[top.pid for top in tops])]
    for top in found[1:]:
        top.nice(niceness)
    time.sleep(4)  # what they load is no part of it
    try:
        yield found
    finally:
        assert pages.is_alive(), "the dashboards ended"
        pages.kill()
        pages.join()
        for each in tops:
            each.kill()
            each.wait()


def terminal(server: Server) -> subprocess.Popen[bytes]:
    """One ``kvasir top``, whose screen somebody reads."""
    own, theirs = pty.openpty()
    command = [sys.executable, "-m", "kvasir", "top", "--url", server.url]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)

    def read() -> None:
        with suppress(OSError):
            while os.read(own, 1 << 16):
                pass
        os.close(own)

    threading.Thread(target=read, daemon=True).start()
    return process


def spent(processes: list[psutil.Process]) -> float:
    """Seconds of CPU time."""
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def watched(server: Server, n_tokens: int, seed: int, niceness: int) -> dict[str, float]:
    """A turn, and which shares of a core all dashboards together and one terminal had."""
    with watching(server, niceness) as (pages, *tops):
        before, began = (spent([pages]), spent(tops)), time.monotonic()
        told = turn(server, n_tokens, seed)
        seconds = time.monotonic() - began
        told["dashboards_share"] = round((spent([pages]) - before[0]) / seconds, 4)
        told["top_share"] = round((spent(tops) - before[1]) / N_TOPS / seconds, 4)
        return told


def measure(model: Path, n_tokens: int, n_turns: int) -> dict[str, Any]:
    options = {"threads": 2, "max_num_seqs": N_STREAMS, "max_model_len": 2048, "tuning": "cached"}
    plain, seen = [], {name: list[dict[str, float]]() for name in NICENESS}
    with Meter() as meter, running_server(model, executor="cpu", engine=options) as server:
        turn(server, n_tokens, 0)
        for i in range(n_turns):
            plain.append(turn(server, n_tokens, 3 * i + 1))
            for j, (name, niceness) in enumerate(NICENESS.items()):
                seen[name].append(watched(server, n_tokens, 3 * i + 2 + j, niceness))
    return {
        "streams": N_STREAMS,
        "tokens": n_tokens,
        "plain": plain,
        "watched": seen,
        "ratios": {name: ratios(found, plain) for name, found in seen.items()},
        "median": {name: medians(ratios(found, plain)) for name, found in seen.items()},
        "shares": {
            key: statistics.median([x[key] for found in seen.values() for x in found])
            for key in ("dashboards_share", "top_share")
        },
        "foreign": meter.foreign,
    }


def ratios(found: list[dict[str, float]], plain: list[dict[str, float]]) -> dict[str, list[float]]:
    pairs = list(zip(found, plain, strict=True))
    return {name: [round(a[name] / b[name], 4) for a, b in pairs] for name in plain[0]}


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 4) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?", help="by default the small one")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    machine = fingerprint()
    model = args.model or default_model()
    told = {
        "kind": "watched",
        "command": command_line(PROGRAM),
        "machine": machine,
        "model": model.name,
        "results": measure(model, args.tokens, args.turns),
    }
    write(told, args.output)


if __name__ == "__main__":
    main()
