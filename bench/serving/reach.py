"""How far one key reaches: whatever is valid, 64 at once, beside another key's stream.

    python -m bench.serving.reach --judge --output bench/results/reach-2cores.json

Each mix is a request drawn from a seed, with fields at their bounds. The other key's stream is
heard beside each for a short while. ``--output`` gets another part when it is there already:
``--first`` is the seed of its first mix, and "next" of the part before. What is heard of a mix
again counts in place of what was heard of it before, so that a part may be of a later commit, which
it names. ``--judge`` hears the worst of all parts again, at length, in turns with plain streams of
the first key, so that nothing is divided by what was heard in other minutes; ``--mixes 0 --judge``
does that alone. All 300 that were wanted are ten parts of ``--mixes 30``, some 70 seconds each, and
the judgement.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.serving.mixes import LENGTH, draw
from bench.serving.tenants import new_key
from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write
from kvasir.serve.keys.keyfile import KeyFile
from kvasir.weights.default import default_model
from tests.e2e.harness import ROOT, Server, running_server

PROGRAM = "python -m bench.serving.reach"
N_TURNS = 3
"""Songs beside plain streams, and beside each of the worst mixes, one after the other."""
N_SHORT, N_LONG = 16, 96
"""Tokens of a song beside each mix, which finds those that are suspect, and of what is judged."""
N_WORST = 2
"""Mixes that are heard again, for each thing that is judged."""
BOUNDS = {"p99": 2.0, "longest": 5.0, "first": 3.0}
SETTLE_SECONDS = 60.0
SILENCE_SECONDS = 60.0
"""Without a token, after which a song is given up: that is what was heard."""


@dataclass
class Heard:
    """Seconds: to the first token, and between two."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """What the other key was told instead of a stream."""

    def figures(self) -> dict[str, Any]:
        if self.refused or not self.gaps:
            return {**dict.fromkeys(BOUNDS, 1e9), "refused": self.refused[0]}
        ordered = sorted(self.gaps)
        p99 = ordered[int(0.99 * (len(ordered) - 1))]
        found = {"p99": p99, "longest": ordered[-1], "first": max(self.first)}
        return {name: round(1e3 * value, 2) for name, value in found.items()}

    def add(self, other: Heard) -> None:
        self.first += other.first
        self.gaps += other.gaps
        self.refused += other.refused


class Stage:
    """A server, the flood's process and the other key."""

    def __init__(self, server: Server, flood: subprocess.Popen[str], secret: str) -> None:
        self._server = server
        self._flood = flood
        self._secret = secret

    def tell(self, line: str) -> str:
        assert self._flood.stdin is not None and self._flood.stdout is not None
        self._flood.stdin.write(line + "\n")
        self._flood.stdin.flush()
        answer = self._flood.stdout.readline().strip()
        if not answer:
            sys.exit("the flood has ended")
        return answer

    def beside(self, mix: str, n_songs: int, n_tokens: int) -> tuple[Heard, str]:
        """What was heard, and the statuses of the flood; nothing when it is not valid."""
        heard = Heard()
        answer = self.tell(mix)
        if answer != "on":
            return heard, answer
        for _ in range(n_songs):
            self._sing(heard, n_tokens)
        answer = self.tell("stop")
        self._settle()
        return heard, answer

    def _sing(self, heard: Heard, n_tokens: int) -> None:
        try:
            self._listen(heard, n_tokens)
        except TimeoutError:
            heard.refused.append(f"silent for {SILENCE_SECONDS:.0f} s")

    def _listen(self, heard: Heard, n_tokens: int) -> None:
        port, silence = self._server.port, SILENCE_SECONDS
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=silence)
        body = {"model": "m", "prompt": [7, 8, 9], "max_tokens": n_tokens, "stream": True}
        asked = json.dumps({**body, "temperature": 0, "ignore_eos": True})
        head = {"Authorization": f"Bearer {self._secret}", "Content-Type": "application/json"}
        times = [time.perf_counter()]
        connection.request("POST", "/v1/completions", asked, head)
        answer = connection.getresponse()
        if answer.status != 200:
            heard.refused.append(f"{answer.status} {answer.read()[:300]!r}")
            return
        while line := answer.readline():
            if line.startswith(b"data: {"):
                times.append(time.perf_counter())
            elif time.perf_counter() - times[-1] > silence:  # comments keep the connection open
                raise TimeoutError
        connection.close()
        heard.first.append(times[1] - times[0])
        heard.gaps += [b - a for a, b in itertools.pairwise(times[1:])]

    def _settle(self) -> None:
        """Until nothing of the flood is left."""
        end = time.monotonic() + SETTLE_SECONDS
        names = ("num_requests_running", "num_requests_waiting")
        while any(self._server.metric(f"kvasir_{name}") for name in names):
            if time.monotonic() > end:
                sys.exit("the flood is not forgotten")
            time.sleep(0.02)


def screen(stage: Stage, first: int, n_mixes: int) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    refused: list[str] = []
    for seed in itertools.count(first):
        if len(found) == n_mixes:
            break
        name = draw(random.Random(seed)).name
        print(f"{seed}: {name}", file=sys.stderr, flush=True)
        heard, said = stage.beside(str(seed), 1, N_SHORT)
        if not heard.gaps and not heard.refused:
            refused.append(f"{seed}: {name}: {said}")
            continue
        found.append({"seed": seed, "mix": name, **heard.figures(), "flood": said})
        print(found[-1], file=sys.stderr, flush=True)
    return {
        "mixes": len(found),
        "first": first,
        "next": seed,
        "refused_as_invalid": len(refused),
        "each": found,
        "refused": refused[:20],
    }


def judge(stage: Stage, each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The worst of ``each`` for each thing that is judged; figures are those of all turns."""
    worst = {x["seed"] for name in BOUNDS for x in sorted(each, key=lambda x: -x[name])[:N_WORST]}
    mixes = ["plain", *map(str, sorted(worst))]
    heard = {mix: Heard() for mix in mixes}
    turns: list[dict[str, Any]] = []
    for _ in range(N_TURNS):
        songs = {mix: stage.beside(mix, 1, N_LONG)[0] for mix in mixes}
        for mix, song in songs.items():
            heard[mix].add(song)
        turns.append({mix: song.figures() for mix, song in songs.items()})
        print(turns[-1], file=sys.stderr, flush=True)
    plain = heard.pop("plain").figures()
    judged = [
        {"seed": int(mix), "mix": draw(random.Random(int(mix))).name, **found.figures()}
        for mix, found in heard.items()
    ]
    return {
        "plain": plain,
        "judged": judged,
        "worst": {name: _worst(judged, plain, name) for name in BOUNDS},
        "turns": turns,
        "mixes": len(each),
    }


def _worst(judged: list[dict[str, Any]], plain: dict[str, Any], name: str) -> dict[str, Any]:
    worst = max(judged, key=lambda x: float(x[name]))
    ratio = worst[name] / plain[name]
    return {"mix": worst["mix"], "ms": worst[name], "ratio": round(ratio, 3), "most": BOUNDS[name]}


@contextmanager
def stage_of(threads: int) -> Iterator[Stage]:
    engine = {"threads": threads, "max_model_len": LENGTH, "max_num_seqs": 64}
    with tempfile.TemporaryDirectory() as folder:
        file = KeyFile(Path(folder) / "keys")
        secrets = [new_key(file, "flood"), new_key(file, "other", "metrics")]
        running = running_server(
            default_model(), executor="cpu", name="m", engine=engine, api_key_file=str(file.path)
        )
        with running as server:
            server.http.headers["Authorization"] = f"Bearer {secrets[1]}"
            command = [sys.executable, "-m", "bench.serving.flood", str(server.port), secrets[0]]
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as flood:
                yield Stage(server, flood, secrets[1])
                flood.kill()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="seed of the first mix")
    parser.add_argument("--mixes", type=int, default=16, help="how many are drawn")
    parser.add_argument("--judge", action="store_true", help="hear the worst of all parts again")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    if not (args.mixes or args.judge):
        parser.error("nothing to hear: --mixes 0 is for --judge")
    told = opened(args.output)
    said = {"command": command_line(PROGRAM), "commit": fingerprint()["commit"]}
    if not (args.mixes or told["parts"]):
        parser.error(f"nothing to judge: {args.output} has no parts, hear some with --mixes first")
    with Meter() as meter, stage_of(args.threads) as stage:
        if args.mixes:
            part = screen(stage, args.first, args.mixes)
            told["parts"].append({**said, **part})
        if args.judge:
            told["judgement"] = {**said, **judge(stage, newest(told["parts"]))}
    last = told["judgement"] if args.judge else told["parts"][-1]
    last["foreign"] = meter.foreign
    write(told, args.output)


def newest(parts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was heard last of each mix: seeds may draw equal ones."""
    return list({x["mix"]: x for part in parts for x in part["each"]}.values())


def opened(output: Path | None) -> dict[str, Any]:
    """What is kept in ``output``, or the beginning of it; the machine is that of the last call."""
    machine = fingerprint()
    begun = {"kind": "reach", "machine": machine, "model": default_model().name, "parts": []}
    if output is None or not output.exists():
        return begun
    before: dict[str, Any] = json.loads(output.read_text())
    if before["machine"]["cpu_family"] != machine["cpu_family"]:
        sys.exit(f"{output} is of another machine")
    return {**before, "machine": machine}


if __name__ == "__main__":
    main()
