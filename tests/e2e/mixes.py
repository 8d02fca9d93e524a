"""Random valid requests, and clients that send them, wait for some and leave others."""

from __future__ import annotations

import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.harness import PATIENCE, Server, connect, post_bytes, read_reply

N_CLIENTS = 8
TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = ("a", "the", "sea", "tells", "of", "ships", "and", "storms", "é", "\n", "42")


@dataclass
class Outcome:
    """How many requests ended how."""

    statuses: dict[int, int] = field(default_factory=dict)
    n_left: int = 0
    """Their client did not wait."""
    wrong: list[str] = field(default_factory=list)
    """Answers that no valid request may have."""

    def add(self, other: Outcome) -> None:
        for status, n in other.statuses.items():
            self.statuses[status] = self.statuses.get(status, 0) + n
        self.n_left += other.n_left
        self.wrong += other.wrong


@dataclass(frozen=True)
class Address:
    """Where a server is, for a process that did not start it."""

    port: int
    model: str


def run_mix(server: Server | Address, n_requests: int, seed: int, *headers: str) -> Outcome:
    """Eight clients send ``n_requests`` together, each one after the other, with ``headers``."""
    total = Outcome()
    shares = [n_requests // N_CLIENTS + (i < n_requests % N_CLIENTS) for i in range(N_CLIENTS)]
    with ThreadPoolExecutor(N_CLIENTS) as pool:
        asked = [
            pool.submit(_client, server, seed * 1000 + i, n, headers) for i, n in enumerate(shares)
        ]
        for found in asked:
            total.add(found.result())
    return total


def _client(
    server: Server | Address, seed: int, n_requests: int, headers: tuple[str, ...]
) -> Outcome:
    rng, outcome = random.Random(seed), Outcome()
    for _ in range(n_requests):
        path, body = _request(rng)
        patience = rng.choice((0.0, 0.01, 0.1)) if rng.random() < 0.2 else None
        asked = post_bytes(
            path,
            json.dumps({"model": server.model, **body}).encode(),
            "Connection: close",
            *headers,
        )
        _ask(server, asked, body, patience, outcome)
    return outcome


def _ask(
    server: Server | Address,
    asked: bytes,
    body: dict[str, Any],
    patience: float | None,
    outcome: Outcome,
) -> None:
    with connect(server) as sock:
        sock.sendall(asked)
        if patience is not None:
            _listen(sock, patience)
            outcome.n_left += 1
            return
        reply = read_reply(sock)
    if reply is None:
        outcome.wrong.append(f"no answer to {str(body)[:300]}")
        return
    outcome.statuses[reply.status] = outcome.statuses.get(reply.status, 0) + 1
    is_late = reply.status == 504 and body.keys() & {"deadline_ms", "ttft_ms"}
    if reply.status not in (200, 429) and not is_late:
        outcome.wrong.append(f"{reply.status} {reply.body[:300]!r} to {str(body)[:300]}")


def _listen(sock: socket.socket, seconds: float) -> None:
    """Reads what comes in this time."""
    end = time.monotonic() + seconds
    with suppress(TimeoutError):
        while (left := end - time.monotonic()) > 0:
            sock.settimeout(min(left, PATIENCE))
            if not sock.recv(2**16):
                return


def _request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    if rng.random() < 0.1:
        return TEXT, _beams(rng)
    body = _sampling(rng)
    if rng.random() < 0.3:
        messages = [{"role": "user", "content": _text(rng, 40)}]
        return CHAT, {**body, "messages": messages, **_maybe(rng, 0.2, "logprobs", True)}
    n_prompts = rng.choice((1, 1, 1, 2, 5, 40))
    as_ids = rng.random() < 0.5
    prompts = [_ids(rng, 200) if as_ids else _text(rng, 40) for _ in range(n_prompts)]
    if rng.random() < 0.2:
        prompts = prompts[:1] * n_prompts
    if n_prompts > 5:
        body["n"] = min(body["n"], 16)
    if rng.random() < 0.2:
        body["logprobs"] = rng.randint(0, 5)
        is_one = len(prompts) == body["n"] == 1
        body["echo"] = rng.random() < 0.5 and (is_one or not body["stream"])
    return TEXT, {**body, "prompt": prompts}


def _beams(rng: random.Random) -> dict[str, Any]:
    prompts = [_ids(rng, 60) for _ in range(rng.randint(1, 3))]
    sizes = {"n": rng.randint(1, 8), "max_tokens": rng.randint(1, 8)}
    return {"prompt": prompts, "use_beam_search": True, **sizes}


def _sampling(rng: random.Random) -> dict[str, Any]:
    n_biases = rng.choice((5, 300))
    bias = {str(rng.randrange(2, 320)): rng.uniform(-5, 5) for _ in range(n_biases)}
    return {
        "n": rng.choice((1, 1, 1, 2, 4, 16, 128)),
        "max_tokens": rng.choice((1, 4, 16, 64)),
        "ignore_eos": rng.random() < 0.5,
        "stream": rng.random() < 0.5,
        **_maybe(rng, 0.3, "temperature", rng.choice((0.0, 0.5, 1.5))),
        **_maybe(rng, 0.3, "seed", rng.randrange(1000)),
        **_maybe(rng, 0.2, "logit_bias", bias),
        **_maybe(rng, 0.2, "deadline_ms", rng.choice((5, 500, 60_000))),
        **_maybe(rng, 0.1, "ttft_ms", rng.choice((5, 500, 60_000))),
        **_maybe(rng, 0.2, "frequency_penalty", 0.5),
        **_maybe(rng, 0.2, "top_p", 0.9),
        **_maybe(rng, 0.1, "min_p", 0.1),
        **_maybe(rng, 0.2, "stop", ["e", "\n"]),
        **_maybe(rng, 0.2, "cache_salt", rng.choice("ab")),
        **_maybe(rng, 0.1, "cache_ttl", 1),
        **_maybe(rng, 0.3, "user", rng.choice("xyz")),
        **_maybe(rng, 0.3, "priority_class", rng.choice(("realtime", "standard", "batch"))),
        **_maybe(rng, 0.2, "priority", rng.randint(-2, 2)),
    }


def _maybe(rng: random.Random, chance: float, name: str, value: object) -> dict[str, Any]:
    return {name: value} if rng.random() < chance else {}


def _ids(rng: random.Random, most: int) -> list[int]:
    return [rng.randrange(2, 320) for _ in range(rng.randint(1, most))]


def _text(rng: random.Random, most: int) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))
