"""Whether a key can see by the time of an answer what another key asked: R104.

    python -m bench.serving.tenants --output bench/results/tenants-2cores.json

In each round one key asks a prompt that is new. Then another key asks the same and one that nobody
has asked, in random order, and the first key asks its own again. Times are from sending to the
answer of one token. The two-sample test is that of Kolmogorov and Smirnov (Press et al.,
Numerical Recipes, 14.3.3): small p says that two sets of times differ.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvasir.bench.fingerprint import Meter, fingerprint
from kvasir.bench.report import command_line, write
from kvasir.serve.keys.key import Key, Scope, create
from kvasir.serve.keys.keyfile import KeyFile
from kvasir.weights.default import default_model
from tests.e2e.harness import Server, running_server

PROGRAM = "python -m bench.serving.tenants"
N_TOKENS = 48
IDS = range(1000, 45_000)
"""Each prompt has a first one of its own: otherwise a key would find beginnings of its own."""
MOST = 100
"""Terms of a sum."""


@dataclass
class Times:
    """Seconds of each answer, and how many of its tokens were found in the cache."""

    seconds: list[float] = field(default_factory=list)
    cached: list[int] = field(default_factory=list)

    def told(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        quantiles = {f"p{q}": ordered[q * (len(ordered) - 1) // 100] for q in (5, 50, 95, 99)}
        ms = {name: round(1e3 * value, 3) for name, value in quantiles.items()}
        return {"ms": ms, "cached_tokens": [min(self.cached), max(self.cached)]}


class Asker:
    """A key with a connection of its own."""

    def __init__(self, server: Server, secret: str) -> None:
        self._model = server.model
        self._http = http.client.HTTPConnection("127.0.0.1", server.port)
        self._headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}

    def ask(self, prompt: list[int], times: Times | None = None) -> None:
        body = {"model": self._model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        data = json.dumps(body)
        began = time.perf_counter()
        self._http.request("POST", "/v1/completions", data, self._headers)
        answer = self._http.getresponse()
        text = answer.read()
        seconds = time.perf_counter() - began
        if answer.status != 200:
            sys.exit(f"{answer.status} {text[:300]!r}")
        if times is not None:
            usage = json.loads(text)["usage"]
            times.seconds.append(seconds)
            times.cached.append(usage["prompt_tokens_details"]["cached_tokens"])


def measure(server: Server, secrets: Sequence[str], n_pairs: int) -> dict[str, Any]:
    rng = random.Random(104)
    first, other = (Asker(server, secret) for secret in secrets)
    known, unknown, own = Times(), Times(), Times()

    firsts = iter(rng.sample(IDS, 2 * n_pairs))

    def new() -> list[int]:
        return [next(firsts), *rng.choices(IDS, k=N_TOKENS - 1)]

    for _ in range(n_pairs):
        prompt = new()
        first.ask(prompt)
        both = [(prompt, known), (new(), unknown)]
        rng.shuffle(both)
        for asked, times in both:
            other.ask(asked, times)
        first.ask(prompt, own)
    return {
        "pairs": n_pairs,
        "known_to_another_key": known.told(),
        "unknown": unknown.told(),
        "known_to_the_same_key": own.told(),
        "p": ks(known.seconds, unknown.seconds),
        "p_of_the_same_key": ks(own.seconds, unknown.seconds),
    }


def ks(a: Sequence[float], b: Sequence[float]) -> float:
    """p of the two-sample test: that two samples of one distribution lie so far apart."""
    a, b = sorted(a), sorted(b)
    i = j = 0
    most = 0.0
    while i < len(a) and j < len(b):
        value = min(a[i], b[j])
        while i < len(a) and a[i] == value:
            i += 1
        while j < len(b) and b[j] == value:
            j += 1
        most = max(most, abs(i / len(a) - j / len(b)))
    root = math.sqrt(len(a) * len(b) / (len(a) + len(b)))
    return _tail((root + 0.12 + 0.11 / root) * most)


def _tail(x: float) -> float:
    """Q of Kolmogorov and Smirnov."""
    if x < 0.2:  # the sum converges slowly, and is 1
        return 1.0
    signed = (math.copysign(2, k % 2 - 0.5) * math.exp(-2 * k * k * x * x) for k in range(1, MOST))
    return min(1.0, max(0.0, sum(signed)))


def new_key(file: KeyFile, name: str, *scopes: Scope) -> str:
    """Its secret. ``scopes``: beside inference."""
    return file.edit(lambda keys: create(keys, Key(name, ("inference", *scopes), (), 0)))


def main() -> None:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    model, machine = default_model(), fingerprint()
    engine = {"threads": args.threads, "max_model_len": 512}
    with tempfile.TemporaryDirectory() as folder:
        file = KeyFile(Path(folder) / "keys")
        secrets = [new_key(file, name) for name in ("first", "other")]
        with Meter() as meter:
            running = running_server(
                model, executor="cpu", name="m", engine=engine, api_key_file=str(file.path)
            )
            with running as server:
                results = measure(server, secrets, args.pairs)
    told = {
        "kind": "tenants",
        "command": command_line(PROGRAM),
        "machine": machine,
        "model": model.name,
        "results": {**results, "foreign": meter.foreign},
    }
    write(told, args.output)


if __name__ == "__main__":
    main()
