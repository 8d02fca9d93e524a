"""Chats with whichever server runs, whole answers."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from bench.peers.servers import PORT

LIMIT_SECONDS = 600.0
NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": 0.0}
"""What servers have other defaults for."""


@dataclass(frozen=True)
class Said:
    """``error``: of a refused request, or one that failed; then there is no answer."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Names and arguments."""
    finish: str = ""
    n_tokens: int = 0
    error: str = ""


def post(path: str, body: dict[str, Any], port: int = PORT) -> Any:
    """Raises OSError and ValueError."""
    data = json.dumps({"model": "m", **body}).encode()
    url = f"http://127.0.0.1:{port}{path}"
    asked = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=LIMIT_SECONDS) as answer:
        return json.load(answer)


def ask(body: dict[str, Any], port: int = PORT) -> Said:
    try:
        return read(post("/v1/chat/completions", {**NEUTRAL, **body}, port))
    except urllib.error.HTTPError as error:
        return Said(error=f"{error.code}: {error.read(500).decode(errors='replace')}")
    except (OSError, ValueError) as error:
        return Said(error=repr(error))


def read(answer: dict[str, Any]) -> Said:
    choice = answer["choices"][0]
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return Said(
        message.get("content") or "",
        tuple((call["name"], call["arguments"]) for call in calls),
        choice["finish_reason"] or "",
        answer["usage"]["completion_tokens"],
    )


def ask_all(
    bodies: Sequence[dict[str, Any]],
    n_streams: int,
    one: Callable[[dict[str, Any]], Said] = ask,
) -> tuple[list[Said], float]:
    """Answers in the order of ``bodies``, ``n_streams`` at a time, and seconds. ``one``: what asks
    for one answer."""
    began = time.perf_counter()
    with ThreadPoolExecutor(n_streams) as clients:
        said = list(clients.map(one, bodies))
    return said, time.perf_counter() - began


def metric(name: str, port: int = PORT) -> float:
    """A number of Kvasir's ``/metrics``. Raises KeyError."""
    url = f"http://127.0.0.1:{port}/metrics"
    with urllib.request.urlopen(url, timeout=LIMIT_SECONDS) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {key.split("{")[0]: float(value) for key, value in pairs}[name]
