"""What it costs 64 streams that 8 dashboards and 2 ``kvasir top`` look at them.

    python -m bench.serving.watched --output bench/results/watched-2cores.json

Turns without and with, one after the other on one server; dashboards ask twice a second, as the
page does. Who looks runs on the same machine, and is counted.
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
from pathlib import Path
from typing import Any

import httpx
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


def turn(server: Server, n_tokens: int, seed: int) -> dict[str, float]:
    """Tokens a second, and the 99th percentile of the gaps in milliseconds."""
    draw = random.Random(seed)
    began = time.monotonic()
    asking = []
    for _ in range(N_STREAMS):
        words = [draw.randrange(1000, 40_000) for _ in range(N_PROMPT)]
        asking.append(Asking(server, words, n_tokens))
    heard = [each.done() for each in asking]
    seconds = max(each.ended for each in heard) - began
    gaps = [b - a for x in heard for a, b in zip(x.moments, x.moments[1:], strict=False)]
    return {
        "tokens_per_second": round(N_STREAMS * n_tokens / seconds, 1),
        "gap_p99_ms": round(1e3 * statistics.quantiles(gaps, n=100)[98], 2),
    }


@contextmanager
def watching(server: Server) -> Iterator[list[psutil.Process]]:
    """The dashboards, and the terminals, which it gives."""
    ended = threading.Event()

    def dashboard() -> None:
        with httpx.Client(timeout=60, trust_env=False) as http:
            while not ended.wait(EVERY):
                http.get(server.url + "/v1/dashboard").raise_for_status()

    threads = [threading.Thread(target=dashboard) for _ in range(N_DASHBOARDS)]
    tops = [terminal(server) for _ in range(N_TOPS)]
    for thread in threads:
        thread.start()
    time.sleep(3)  # what they load is no part of it
    try:
        yield [psutil.Process(top.pid) for top in tops]
    finally:
        ended.set()
        for thread in threads:
            thread.join()
        for top in tops:
            top.kill()
            top.wait()


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


def measure(model: Path, n_tokens: int, n_pairs: int) -> dict[str, Any]:
    options = {"threads": 2, "max_num_seqs": N_STREAMS, "max_model_len": 2048, "tuning": "cached"}
    plain, watched, shares = [], [], []
    with Meter() as meter, running_server(model, executor="cpu", engine=options) as server:
        turn(server, n_tokens, 0)
        for i in range(n_pairs):
            plain.append(turn(server, n_tokens, 2 * i + 1))
            with watching(server) as tops:
                before, began = spent(tops), time.monotonic()
                watched.append(turn(server, n_tokens, 2 * i + 2))
                taken = (spent(tops) - before) / N_TOPS
                shares.append(round(taken / (time.monotonic() - began), 4))
    pairs = list(zip(watched, plain, strict=True))
    ratios = {
        name: [round(one[name] / other[name], 4) for one, other in pairs] for name in plain[0]
    }
    return {
        "streams": N_STREAMS,
        "tokens": n_tokens,
        "plain": plain,
        "watched": watched,
        "ratios": ratios,
        "top_share_of_a_core": statistics.median(shares),
        "median": {name: statistics.median(values) for name, values in ratios.items()},
        "foreign": meter.foreign,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, nargs="?", help="by default the small one")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    machine = fingerprint()
    model = args.model or default_model()
    told = {
        "kind": "watched",
        "command": command_line(PROGRAM),
        "machine": machine,
        "model": model.name,
        "results": measure(model, args.tokens, args.pairs),
    }
    write(told, args.output)


if __name__ == "__main__":
    main()
