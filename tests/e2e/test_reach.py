"""Two keys: one sends whatever is valid, the other streams. ``make test-quiet`` judges times.

The clients of the first key are a process of their own: in one with the listener they would hold
the lock of its interpreter, at the lowest priority, and what is heard late would be their doing.
"""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from kvasir.serve.keys.key import Key, create
from kvasir.serve.keys.keyfile import KeyFile
from tests import tiny
from tests.e2e.canaries import GAP_SLACK, JUDGES_TIMES, p99
from tests.e2e.harness import PATIENCE, Server, running_server, step_back
from tests.e2e.mixes import Address, run_mix

N_TOKENS = 300
N_STREAMS = 60
"""As many as a flood may have beside it, nearly."""
MIX = 80
"""Requests of the flood."""
N_CHOIRS, N_CHOICES = 24, 128
"""Requests of the highest class and priority, and how many choices each has."""


@dataclass
class Keyed:
    server: Server
    flood: dict[str, str]
    other: dict[str, str]


@dataclass
class Song:
    id: str = ""
    text: str = ""
    first: float = 0.0
    """Seconds until its first token."""
    gaps: list[float] = field(default_factory=list)
    n_waited: int = 0
    """Steps from its arrival to its first,"""
    n_own: int = 0
    """those that drew a token of it,"""
    n_all: int = 0
    """and all from the first of them to the last."""


def secret_of(file: KeyFile, name: str) -> str:
    """Of a new key."""
    return file.edit(lambda keys: create(keys, Key(name, ("inference",), (), 0)))


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    folder = tmp_path_factory.mktemp("reach")
    model = tiny.write_hf(tiny.llama(max_position_embeddings=2048), folder / "model")
    file = KeyFile(folder / "keys")
    secrets = [secret_of(file, name) for name in ("flood", "other")]
    headers = [{"Authorization": f"Bearer {secret}"} for secret in secrets]
    options = {"threads": 1, "kv_memory": 16 << 20, "max_num_seqs": 64}
    with running_server(
        model, executor="cpu", name="tiny", engine=options, api_key_file=str(file.path)
    ) as server:
        yield Keyed(server, *headers)


def sing(url: str, model: str, key: dict[str, str]) -> Song:
    song, last = Song(), 0.0
    body = {
        "model": model,
        "prompt": [7, 8, 9],
        "max_tokens": N_TOKENS,
        "ignore_eos": True,
        "stream": True,
        "temperature": 0,
    }
    began = time.perf_counter()
    with (
        httpx.Client(timeout=PATIENCE, trust_env=False) as client,
        client.stream("POST", url + "/v1/completions", json=body, headers=key) as stream,
    ):
        assert stream.status_code == 200
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                now = time.perf_counter()
                event = json.loads(line[6:])
                song.id, song.text = event["id"], song.text + event["choices"][0]["text"]
                if last:
                    song.gaps.append(now - last)
                else:
                    song.first = now - began
                last = now
    return song


def plain_streams(url: str, model: str, key: dict[str, str]) -> None:
    with ThreadPoolExecutor(N_STREAMS) as pool:
        for song in [pool.submit(sing, url, model, key) for _ in range(2 * N_STREAMS)]:
            song.result()


def choirs(url: str, model: str, key: dict[str, str]) -> list[int]:
    """Statuses that should not be."""
    body = {
        "model": model,
        "prompt": [5, 6, 7],
        "n": N_CHOICES,
        "max_tokens": 16,
        "ignore_eos": True,
        "priority_class": "realtime",
        "priority": -(1 << 31),
    }

    def ask(_: int) -> int:
        url_of_texts = url + "/v1/completions"
        answer = httpx.post(url_of_texts, json=body, headers=key, timeout=PATIENCE, trust_env=False)
        return answer.status_code

    with ThreadPoolExecutor(6) as pool:
        return [status for status in pool.map(ask, range(N_CHOIRS)) if status != 200]


def mixes(port: int, model: str, seed: int, key: dict[str, str]) -> list[str]:
    """Answers that should not be."""
    header = f"Authorization: {key['Authorization']}"
    return run_mix(Address(port, model), MIX, seed, header).wrong


def sing_beside(keyed: Keyed, work: Callable[..., Any], *given: object) -> list[Song]:
    """Songs of the other key while another process does ``work`` for the flood's: at least one."""
    songs: list[Song] = []
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=step_back) as pool:
        pool.submit(step_back).result()  # it has started
        flood = pool.submit(work, *given, keyed.flood)
        while not flood.done() or not songs:
            songs.append(sing(keyed.server.url, keyed.server.model, keyed.other))
            count_steps(keyed, songs[-1])
        assert not flood.result()
    return songs


def beside_a_flood(keyed: Keyed, seed: int) -> list[Song]:
    return sing_beside(keyed, mixes, keyed.server.port, keyed.server.model, seed)


def count_steps(keyed: Keyed, song: Song) -> None:
    """While the last steps are remembered."""
    steps = ask_for(keyed, "/v1/timeline?steps=4096")["steps"]
    own = [
        step["step"]
        for step in steps
        if any(row["id"] == song.id and row["kind"] == "decode" for row in step["requests"])
    ]
    song.n_own, song.n_all = len(own), max(own) - min(own) + 1
    arrived = ask_for(keyed, f"/v1/requests/{song.id}/timeline")["choices"][0]["arrived"]
    song.n_waited = sum(arrived <= step["at"] and step["step"] < own[0] for step in steps)


def ask_for(keyed: Keyed, path: str) -> dict[str, Any]:
    url = keyed.server.url + path
    answer = httpx.get(url, headers=keyed.other, trust_env=False, timeout=PATIENCE)
    found: dict[str, Any] = answer.json()
    return found


def test_a_stream_beside_a_flood_of_another_key_loses_no_step(keyed: Keyed) -> None:
    """And no byte. How long these steps are is counted in ``unit/test_reach.py``."""
    alone = sing(keyed.server.url, keyed.server.model, keyed.other)
    for song in beside_a_flood(keyed, seed=3):
        assert song.text == alone.text
        assert song.n_own >= 0.95 * song.n_all, "preempted, or left out"
        assert song.n_own > N_TOKENS // 2


def test_a_flood_of_the_highest_class_and_priority_keeps_no_other_key_waiting(
    keyed: Keyed,
) -> None:
    """Its choices, many times as many as there are slots, have their share of these."""
    server = keyed.server
    for song in sing_beside(keyed, choirs, server.url, server.model):
        assert song.n_waited <= 48, "a few rounds of choices of 16 tokens"
        assert song.n_own >= 0.95 * song.n_all


@pytest.mark.skipif(not JUDGES_TIMES, reason="times of a quiet machine: make test-quiet")
def test_a_stream_beside_a_flood_is_hardly_slower_than_beside_plain_streams(keyed: Keyed) -> None:
    plain = sing_beside(keyed, plain_streams, keyed.server.url, keyed.server.model)
    quiet = [gap for song in plain for gap in song.gaps]
    found = beside_a_flood(keyed, seed=5)
    gaps = [gap for song in found for gap in song.gaps]
    print(f"p99 {p99(quiet):.4f} -> {p99(gaps):.4f}, longest {max(quiet):.4f} -> {max(gaps):.4f} s")
    assert p99(gaps) <= 2 * p99(quiet) + GAP_SLACK
    assert max(gaps) <= 5 * max(quiet) + GAP_SLACK
    first, before = max(song.first for song in found), max(song.first for song in plain)
    assert first <= 3 * before + GAP_SLACK
