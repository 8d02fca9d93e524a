"""Engines that are ended at random moments."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from kvasir.bench.fingerprint import Meter
from tests.e2e.harness import Server, running_server
from tests.endurance.clock import RunClock
from tests.endurance.load import PATIENCE, Load, share

SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGSTOP)
MEAN_SECONDS = 45.0
"""Between two signals, which do not ask whether an engine is ready."""
N_CLIENTS = 6
RATE = 0.7
LOOK_SECONDS = 0.5


class Looks:
    """Asks ``/live`` and ``/ready`` all the time."""

    def __init__(self, server: Server) -> None:
        self.n = 0
        self.n_live = 0
        self.n_ready = 0
        self._url = server.url
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self) -> dict[str, Any]:
        self._ended.set()
        self._thread.join()
        return {"n": self.n, "live": self.n_live / self.n, "ready": self.n_ready / self.n}

    def _run(self) -> None:
        with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
            while not self._ended.wait(LOOK_SECONDS):
                self.n += 1
                with suppress(httpx.HTTPError):
                    self.n_live += http.get(self._url + "/live").status_code == 200
                    self.n_ready += http.get(self._url + "/ready").status_code == 200


def run(model: Path, seconds: float, threads: int) -> dict[str, Any]:
    """``seconds`` of random kills under a load of all kinds."""
    rng, sent = random.Random(5), Counter[str]()
    engine = {"threads": threads, "max_num_seqs": 32, "kv_memory": 256 << 20}
    with Meter() as meter, running_server(model, executor="cpu", name="m", engine=engine) as server:
        server.http.timeout = PATIENCE
        load = Load(server, N_CLIENTS, RATE, seed=1)
        looks, clock = Looks(server), RunClock()
        load.start()
        while clock.seconds < seconds and server.process.poll() is None:
            clock.sleep(rng.expovariate(1 / MEAN_SECONDS))
            sent[_kill(server, rng)] += 1
        is_alive = server.process.poll() is None
        found = {"looks": looks.end(), **_told(load), **(_counted(server) if is_alive else {})}
    return {
        "seconds": round(clock.seconds),
        "seconds_stopped_as_a_whole": round(clock.stopped),
        "signals": dict(sent),
        "server_lived": is_alive,
        **found,
        "foreign": meter.foreign,
    }


def _kill(server: Server, rng: random.Random) -> str:
    number = rng.choice(SIGNALS)
    try:
        os.kill(server.engine_pid(), number)
    except (ValueError, ProcessLookupError, psutil.NoSuchProcess):
        return "none: no engine lived"
    return number.name


def _told(load: Load) -> dict[str, Any]:
    tally = load.end()
    return {
        "requests": tally.n_asked,
        "kinds": load.n_kinds,
        "right": tally.n_right,
        "other_bytes": tally.n_other_bytes,
        "failed": tally.n_failed,
        "availability": tally.n_right / tally.n_asked,
        "failures": tally.failures,
        "answer_seconds": {
            "p50": share(tally.seconds, 0.5),
            "p99": share(tally.seconds, 0.99),
            "max": share(tally.seconds, 1.0),
        },
    }


def _counted(server: Server) -> dict[str, Any]:
    time.sleep(1)
    names = ("deaths", "hang_kills", "restarts")
    found = {name: int(server.metric(f"kvasir_engine_{name}_total")) for name in names}
    return {**found, "convicted": sum("ended the engine twice" in line for line in server.lines)}
