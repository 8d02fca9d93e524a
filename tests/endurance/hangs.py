"""Long prompts on a machine that takes CPUs away, stops processes and sets its clock: no engine
may be taken for dead."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil

from kvasir.bench.fingerprint import Meter
from tests.e2e.harness import Server, running_server, wait_until
from tests.endurance.clock import RunClock
from tests.endurance.load import PATIENCE, share

LENGTH = 8192
N_PROMPT = 8000
N_OUT = 16
N_PROMPTS = 3
MEAN_SECONDS = 8.0
"""Between two disturbances."""
PAUSE_SECONDS = 5.0
"""Between two prompts of a client: others use the machine, too."""
MAX_JUMP = 7200
"""Seconds that the wall clock jumps to either side."""


class Disturber:
    """What happens to the server and its engine; ``clock_file`` has its clock's offset."""

    def __init__(self, server: Server, clock: RunClock, clock_file: Path) -> None:
        self._server = server
        self._clock = clock
        self._clock_file = clock_file
        self._rng = random.Random(11)
        self.n: Counter[str] = Counter()

    def once(self) -> None:
        kinds: list[Callable[[], None]] = [self.stop_all, self.stop_server, self.stop_engine]
        kinds += [self.steal, self.steal, self.jump, self.jump]
        kind = self._rng.choice(kinds)
        kind()
        self.n[kind.__name__] += 1

    def stop_all(self) -> None:
        """For longer than the limit of a hang, at times."""
        api = self._server.process.pid
        self._stop([api, self._server.engine_pid()], self._rng.uniform(0.5, 9.0))

    def stop_server(self) -> None:
        self._stop([self._server.process.pid], self._rng.uniform(0.5, 9.0))

    def stop_engine(self) -> None:
        """For less than the limit: longer is a hang."""
        self._stop([self._server.engine_pid()], self._rng.uniform(0.1, 2.5))

    def steal(self) -> None:
        """Neighbours with the highest share that spin, more than there are CPUs."""
        n = self._rng.randint(1, 2 * (os.cpu_count() or 1))
        command = [sys.executable, "-c", "while True: pass"]
        neighbours = [subprocess.Popen(command) for _ in range(n)]
        self._clock.sleep(self._rng.uniform(2, 12))
        for neighbour in neighbours:
            neighbour.kill()
            neighbour.wait()

    def jump(self) -> None:
        self._clock_file.write_text(f"{self._rng.randint(-MAX_JUMP, MAX_JUMP):+d}\n")

    def _stop(self, pids: list[int], seconds: float) -> None:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        self._clock.sleep(seconds)
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


class Client(threading.Thread):
    """Sends long prompts, each computed anew, and compares their answers."""

    def __init__(self, server: Server, seed: int) -> None:
        super().__init__()
        self._server = server
        self._rng = random.Random(seed)
        self._prompts = [
            self._rng.choices(range(1000, 30_000), k=N_PROMPT) for _ in range(N_PROMPTS)
        ]
        self._alone: dict[int, str] = {}
        self._ended = threading.Event()
        self.n_right = 0
        self.wrong: list[str] = []
        self.clock = RunClock()
        self.seconds: list[float] = []

    def run(self) -> None:
        with httpx.Client(timeout=PATIENCE, trust_env=False) as http:
            while not self._ended.wait(self._rng.expovariate(1 / PAUSE_SECONDS)):
                self._once(http, self._rng.randrange(N_PROMPTS))

    def end(self) -> None:
        self._ended.set()
        self.join()

    def _once(self, http: httpx.Client, i: int) -> None:
        salt = f"{self._rng.random()}"
        body = {"model": self._server.model, "prompt": self._prompts[i], "max_tokens": N_OUT}
        asked = {**body, "temperature": 0, "ignore_eos": True, "cache_salt": salt}
        try:
            answer = http.post(self._server.url + "/v1/completions", json=asked)
            text = answer.json()["choices"][0]["text"] if answer.status_code == 200 else None
        except httpx.HTTPError as error:
            self.wrong.append(repr(error))
            return
        if text is None:
            self.wrong.append(f"{answer.status_code} {answer.text[:300]}")
        elif text != self._alone.setdefault(i, text):
            self.wrong.append("other bytes")
        else:
            self.n_right += 1
            self.seconds.append(answer.elapsed.total_seconds())


def run(
    model: Path, seconds: float, threads: int, niceness: int, clock_file: Path
) -> dict[str, Any]:
    """``seconds`` of 8k prompts beside disturbances. ``clock_file``: where the server reads from
    how far its wall clock is off."""
    engine = {"threads": threads, "max_model_len": LENGTH, "max_num_seqs": 4}
    with Meter() as meter, running_server(model, executor="cpu", name="m", engine=engine) as server:
        server.http.timeout = PATIENCE
        for pid in (server.process.pid, server.engine_pid()):
            for thread in psutil.Process(pid).threads():
                os.setpriority(os.PRIO_PROCESS, thread.id, niceness)
        client, clock = Client(server, 3), RunClock()
        disturber = Disturber(server, clock, clock_file)
        client.start()
        rng = random.Random(4)
        while clock.seconds < seconds and server.process.poll() is None:
            clock.sleep(rng.expovariate(1 / MEAN_SECONDS))
            disturber.once()
        client.end()
        wait_until(lambda: server.get("/ready").status_code == 200)
        names = ("deaths", "hang_kills")
        counts = {name: int(server.metric(f"kvasir_engine_{name}_total")) for name in names}
    return {
        "seconds": round(clock.seconds),
        "seconds_stopped_as_a_whole": round(clock.stopped),
        "disturbances": dict(disturber.n),
        "prompts": client.n_right + len(client.wrong),
        "prompt_tokens": N_PROMPT,
        "right": client.n_right,
        "wrong": client.wrong[:20],
        "prompt_seconds": {"p50": share(client.seconds, 0.5), "max": share(client.seconds, 1.0)},
        **counts,
        "foreign": meter.foreign,
    }
