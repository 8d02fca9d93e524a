"""A steady load of many kinds of requests, each answer compared with the one that it had while
nothing happened."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx

from tests.e2e.asked import Asked, beams, streams, told
from tests.e2e.harness import Server

N_TOKENS = 20
PROMPTS = (
    "Tell me of the sea.",
    "Write a list of three fruits:",
)
PATIENCE = 1200.0
"""Seconds: whoever runs this may stop all of it for minutes."""
MAX_KEPT = 20
"""Failures whose words are kept."""


def corpus() -> list[Asked]:
    """Every kind, streamed and whole, of each of ``PROMPTS``."""
    found: list[Asked] = []
    for i, prompt in enumerate(PROMPTS):
        free = {"prompt": prompt, "max_tokens": N_TOKENS, "ignore_eos": True}
        for path, body in streams(free):
            found.append((path, _varied(body, prompt, i) | {"stream": True}))
            whole = {name: body[name] for name in body if name != "stream_options"}
            found.append((path, _varied(whole, prompt, i) | {"stream": False}))
        found += [(path, _varied(body, prompt, i)) for path, body in beams(N_TOKENS)]
    return found


def _varied(body: dict[str, object], prompt: str, i: int) -> dict[str, object]:
    changed = dict(body)
    for name in ("prompt", "input"):
        if isinstance(body.get(name), str):
            changed[name] = prompt
        elif name in body:
            changed[name] = [prompt, f"{prompt} And", prompt]
    if "messages" in body:
        changed["messages"] = [{"role": "user", "content": prompt}]
    if "seed" in body:
        changed["seed"] = 100 * i + 7
    return changed


@dataclass
class Tally:
    """What became of the requests of a load."""

    n_asked: int = 0
    n_right: int = 0
    n_other_bytes: int = 0
    failures: list[str] = field(default_factory=list)
    n_failed: int = 0
    """No answer, or one of another status than 200."""
    seconds: list[float] = field(default_factory=list)
    """From sending to the last byte, of right answers."""


class Load:
    """``n_clients`` threads that send requests of the corpus, together about ``rate`` a second."""

    def __init__(self, server: Server, n_clients: int, rate: float, seed: int) -> None:
        self._server = server
        self._http = httpx.Client(timeout=PATIENCE, trust_env=False)
        self._asked = corpus()
        with ThreadPoolExecutor(n_clients) as pool:
            self._alone = list(pool.map(self._answer, self._asked))
        self.tally = Tally()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(seed + i), rate / n_clients))
            for i in range(n_clients)
        ]

    @property
    def n_kinds(self) -> int:
        return len(self._asked)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def end(self) -> Tally:
        """Waits for every answer that is under way."""
        self._ended.set()
        for thread in self._threads:
            thread.join()
        return self.tally

    def _run(self, rng: random.Random, rate: float) -> None:
        while not self._ended.wait(rng.expovariate(rate)):
            i = rng.randrange(len(self._asked))
            began = time.monotonic()
            try:
                same, wrong = self._answer(self._asked[i]) == self._alone[i], ""
            except (httpx.HTTPError, ValueError) as error:
                same, wrong = False, f"{type(error).__name__}: {error}"
            self._book(same, wrong, self._asked[i], time.monotonic() - began)

    def _book(self, same: bool, wrong: str, asked: Asked, seconds: float) -> None:
        with self._lock:
            tally = self.tally
            tally.n_asked += 1
            tally.n_right += same
            tally.n_failed += bool(wrong)
            tally.n_other_bytes += not same and not wrong
            if same:
                tally.seconds.append(seconds)
            elif len(tally.failures) < MAX_KEPT:
                tally.failures.append(f"{wrong or 'other bytes'}: {str(asked)[:300]}")

    def _answer(self, asked: Asked) -> bytes:
        path, body = asked
        url = self._server.url + path
        answer = self._http.post(url, json={"model": self._server.model, **body})
        if answer.status_code != 200:
            raise ValueError(f"{answer.status_code} {answer.text[:300]}")
        return told(answer.content)


def share(values: Sequence[float], part: float) -> float:
    """The quantile ``part`` of ``values``, 0 of none."""
    return round(sorted(values)[int(part * (len(values) - 1))], 3) if values else 0.0
