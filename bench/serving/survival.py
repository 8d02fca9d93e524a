"""What a server does when engines and servers end, each test whole, and how long streams pause.

    python -m bench.serving.survival tests --output bench/results/survival.json
    python -m bench.serving.survival pause --output bench/results/survival-pause-2cores.json

``tests`` runs the long forms of the tests and keeps their outcomes, each as it is known. ``pause``
kills an engine under 64 streams of a real model that have 200 tokens each, and stops one, and
compares the pause with a warm start and the time that the prompts of as many tokens take, all in
one run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write
from kvasir.weights.default import default_model
from tests.e2e.harness import ROOT, Server, is_alive, running_server, wait_until

PROGRAM = "python -m bench.serving.survival"
SUITES = {
    "engine killed 10 times in a row under 80 requests of every kind": (
        "tests/e2e/test_survival.py",
        "kills_under",
    ),
    "engine that dies before, inside and after a step, and in a frame": (
        "tests/e2e/test_survival.py",
        "death_at_any_point",
    ),
    "engine that hangs or is stopped": ("tests/e2e/test_survival.py", "hangs or stopped or busy"),
    "poison among 32 streams, sent 20 times more": ("tests/e2e/test_survival.py", "poison"),
    "engine swapped under its streams": ("tests/e2e/test_survival.py", "swapped"),
    "server killed 20 times beside a batch of 5,000 lines": ("tests/e2e/test_state_kills.py", ""),
    "server killed 20 times beside 100 responses in the background": (
        "tests/e2e/test_response_kills.py",
        "",
    ),
    "successor takes the sockets at 50 requests a second": ("tests/e2e/test_handover.py", ""),
    "a batch goes on in a successor": ("tests/e2e/test_state_handover.py", ""),
}
N_STREAMS, N_PROMPT, N_BEFORE, N_AFTER = 64, 100, 100, 64
"""Tokens of a stream: its prompt, those of its answer before the kill, and those after, of which
the first streams have some when the last one has all before."""
IDS = 20_000
REPEAT = 3
PATIENCE = 600.0


def run_tests() -> Iterator[dict[str, Any]]:
    """All outcomes so far, after each suite."""
    found: dict[str, Any] = {}
    for what, (path, names) in SUITES.items():
        with tempfile.NamedTemporaryFile(suffix=".xml") as report:
            command = [sys.executable, "-m", "pytest", "-q", "-s", path, "-k", names]
            command += [f"--junitxml={report.name}", "-o", "timeout=3600"]
            done = subprocess.run(
                command,
                cwd=ROOT,
                env={**os.environ, "KVASIR_KILLS": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            found[what] = {**_outcome(report.name), **_said(done.stdout)}
        print(what, found[what], file=sys.stderr, flush=True)
        yield found


def _outcome(report: str) -> dict[str, Any]:
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = {}
    for case in cases:
        for fault in (*case.iter("failure"), *case.iter("error")):
            bad[case.get("name", "")] = fault.get("message", "")[:500]
    seconds = sum(float(case.get("time", "0")) for case in cases)
    return {"tests": len(cases), "failed": bad, "seconds": round(seconds, 1)}


def _said(output: str) -> dict[str, Any]:
    """What a test printed as JSON."""
    lines = re.findall(r"\{\"kills\".*\}", output)
    return json.loads(lines[-1]) if lines else {}


class Streams:
    """``N_STREAMS`` answers that are listened to."""

    def __init__(self, server: Server, seed: int) -> None:
        self._server = server
        self._seed = seed
        self.times: list[list[float]] = [[] for _ in range(N_STREAMS)]
        self.texts = [""] * N_STREAMS
        self._threads = [threading.Thread(target=self._hear, args=(i,)) for i in range(N_STREAMS)]
        for thread in self._threads:
            thread.start()

    def wait(self, n_tokens: int) -> None:
        wait_until(lambda: min(map(len, self.times)) >= n_tokens, PATIENCE)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def pause(self, at: float) -> float:
        """Seconds from ``at`` until every stream has gone on."""
        return max(next(t for t in times if t > at) for times in self.times) - at

    def gap(self) -> float:
        return max(b - a for times in self.times for a, b in itertools.pairwise(times))

    def _hear(self, i: int) -> None:
        body = {**prompt(self._seed, i), "max_tokens": N_BEFORE + N_AFTER, "stream": True}
        asked = {"model": self._server.model, "temperature": 0, "ignore_eos": True, **body}
        asked["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
        url = self._server.url + "/v1/completions"
        with (
            httpx.Client(timeout=PATIENCE, trust_env=False) as client,
            client.stream("POST", url, json=asked) as answer,
        ):
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    n_new = event["usage"]["completion_tokens"] - len(self.times[i])
                    self.times[i] += [time.perf_counter()] * n_new  # an event may have several
                    self.texts[i] += "".join(choice["text"] for choice in event["choices"])


def prompt(seed: int, i: int, n: int = N_PROMPT) -> dict[str, Any]:
    """Of its own ids."""
    return {"prompt": [100 + (seed * 7919 + i * 131 + j * 17) % IDS for j in range(n)]}


def measure_pause(model: Path, threads: int) -> dict[str, Any]:
    engine = {"threads": threads, "max_num_seqs": N_STREAMS, "max_model_len": 512}
    with Meter() as meter, running_server(model, executor="cpu", name="m", engine=engine) as server:
        server.http.timeout = PATIENCE
        starts = [_warm_start(server) for _ in range(REPEAT)]
        prefills = [_prefill(server, 50 + i) for i in range(REPEAT)]
        kills = [_ended(server, 1, signal.SIGKILL) for _ in range(REPEAT)]
        stops = [_ended(server, 1, signal.SIGSTOP)]
        said = [line for line in server.lines if "did not go on for" in line]
    undisturbed, texts = _alone(model, engine)
    start, prefill = statistics.median(starts), statistics.median(prefills)
    pauses = [kill["pause"] for kill in kills]
    still, limit = map(float, re.findall(r"([\d.]+) s", said[-1])[:2])
    return {
        "streams": N_STREAMS,
        "tokens_of_each": N_PROMPT + N_BEFORE,
        "warm_start": start,
        "prefill": prefill,
        "pauses": pauses,
        "pause": statistics.median(pauses),
        "ratio": round(statistics.median(pauses) / (start + prefill), 3),
        "undisturbed_longest_gap": undisturbed,
        "hang": {
            "still": still,
            "limit": limit,
            "killed_after": stops[0]["ended_after"],
            "pause": stops[0]["pause"],
        },
        "same_bytes": all(each["texts"] == texts for each in kills + stops),
        "foreign": meter.foreign,
    }


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return round(time.perf_counter() - began, 3)


def _warm_start(server: Server) -> float:
    """From the end of an idle engine to a token of the next."""
    os.kill(server.engine_pid(), signal.SIGKILL)
    wait_until(lambda: server.get("/ready").status_code == 503)
    return _timed(lambda: server.post("/v1/completions", {"prompt": [5], "max_tokens": 1}))


def _prefill(server: Server, seed: int) -> float:
    """Of as many tokens as streams have when their engine is killed, all at once."""
    n = N_PROMPT + N_BEFORE
    asked = [{**prompt(seed, i, n), "max_tokens": 1} for i in range(N_STREAMS)]
    with ThreadPoolExecutor(N_STREAMS) as pool:
        return _timed(lambda: list(pool.map(lambda x: server.post("/v1/completions", x), asked)))


def _ended(server: Server, seed: int, number: signal.Signals) -> dict[str, Any]:
    streams = Streams(server, seed)
    streams.wait(N_BEFORE)
    engine = server.engine_pid()
    at = time.perf_counter()
    os.kill(engine, number)
    wait_until(lambda: not is_alive(engine), PATIENCE)
    ended = time.perf_counter() - at
    streams.join()
    pause = round(streams.pause(at), 3)
    return {"ended_after": round(ended, 3), "pause": pause, "texts": streams.texts}


def _alone(model: Path, engine: dict[str, Any]) -> tuple[float, list[str]]:
    with running_server(model, executor="cpu", name="m", engine=engine) as server:
        streams = Streams(server, 1)
        streams.join()
    return round(streams.gap(), 3), streams.texts


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("tests", "pause"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    told: dict[str, Any] = {
        "kind": f"survival {args.what}",
        "command": command_line(PROGRAM),
        "machine": fingerprint(),
    }
    if args.what == "pause":
        model = default_model()
        told |= {"model": model.name, "results": measure_pause(model, args.threads)}
    else:
        for found in run_tests():
            told["results"] = found
            if args.output is not None:
                write(told, args.output)
    write(told, args.output)


if __name__ == "__main__":
    main()
