"""What Prometheus costs, and whether inventing users makes series.

    python -m bench.serving.scrapes --output bench/results/scrapes-2cores.json

Requests of ever new users are sent to a server of a model made for tests, which is scraped then.
CPU time of the API process is counted, which others on the machine hardly move.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write
from tests.e2e.harness import Server, running_server
from tests.e2e.toy_model import write_toy_model

PROGRAM = "python -m bench.serving.scrapes"
N_CLIENTS = 8
N_SCRAPES = 200
CLASSES = ("realtime", "standard", "batch")


def series(server: Server) -> set[str]:
    lines = server.get("/metrics").text.splitlines()
    return {line.rsplit(" ", 1)[0] for line in lines if line and not line.startswith("#")}


def send_users(server: Server, n_users: int) -> None:
    left = iter(range(n_users))
    lock = threading.Lock()

    def client(seed: int) -> None:
        rng = random.Random(seed)
        with httpx.Client(timeout=120, trust_env=False) as http:
            while True:
                with lock:
                    i = next(left, None)
                if i is None:
                    return
                chosen = {"user": f"user {i}", "priority_class": rng.choice(CLASSES)}
                body = {"model": server.model, "prompt": [7], "max_tokens": 1, **chosen}
                http.post(server.url + "/v1/completions", json=body).raise_for_status()

    with ThreadPoolExecutor(N_CLIENTS) as pool:
        list(pool.map(client, range(N_CLIENTS)))


def scrape(server: Server) -> dict[str, float]:
    """CPU milliseconds of the API process for one, on a connection that is kept, as Prometheus
    does; the page's bytes."""
    api = psutil.Process(server.process.pid)
    with httpx.Client(timeout=120, trust_env=False) as http:
        page = http.get(server.url + "/metrics").content
        before, began = api.cpu_times(), time.perf_counter()
        for _ in range(N_SCRAPES):
            http.get(server.url + "/metrics")
        after, seconds = api.cpu_times(), time.perf_counter() - began
    spent = after.user + after.system - before.user - before.system
    return {
        "cpu_ms": round(1e3 * spent / N_SCRAPES, 3),
        "wall_ms": round(1e3 * seconds / N_SCRAPES, 3),
        "bytes": len(page),
    }


def measure(model: Path, n_users: int) -> dict[str, Any]:
    with Meter() as meter, running_server(model, name="toy") as server:
        send_users(server, 50)
        before = series(server)
        send_users(server, n_users)
        after = series(server)
        one = scrape(server)
    return {
        "users": n_users,
        "series_before": len(before),
        "series_after": len(after),
        "new_series": sorted(after - before)[:20],
        "scrape": one,
        "share_of_a_cpu_at_one_a_second": one["cpu_ms"] / 1e3,
        "foreign": meter.foreign,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    machine = fingerprint()
    with tempfile.TemporaryDirectory() as folder:
        results = measure(write_toy_model(Path(folder) / "toy"), args.users)
    told = {
        "kind": "scrapes",
        "command": command_line(PROGRAM),
        "machine": machine,
        "results": results,
    }
    write(told, args.output)


if __name__ == "__main__":
    main()
