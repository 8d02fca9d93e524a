"""Very many small requests, some left and some wrong: what a server keeps of each."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from kvasir.bench.fingerprint import Meter
from tests.e2e.asked import Asked, beams, streams
from tests.e2e.harness import (
    PATIENCE,
    Server,
    head,
    n_known,
    post_bytes,
    running_server,
    wait_until,
)

ABORTED, FAULTY = 0.10, 0.01
N_CLIENTS = 24
N_SAMPLES = 100
WARM_SHARE = 0.25
"""Of the requests: those that fill what is bounded, such as kept answers and the timeline."""
MOST_SECONDS = 0.1
"""After which a client has left."""
KINDS = (
    *streams({"prompt": "sing of small songs", "max_tokens": 12, "ignore_eos": True}),
    *beams(4),
)


def wrong(path: str) -> tuple[bytes, ...]:
    """What no server can answer with 200."""
    return (
        post_bytes(path, b'{"model": "m", "prompt": ', "Connection: close"),
        post_bytes(path, b"\xff\xfe\x00", "Connection: close"),
        post_bytes(path, json.dumps({"model": "m", "n": -1}).encode(), "Connection: close"),
        post_bytes(path, json.dumps({"prompt": "x" * 60_000}).encode(), "Connection: close"),
        post_bytes("/v1/nowhere", b"{}", "Connection: close"),
        head("DELETE", path, "Connection: close"),
        head("GET", "/v1/responses/resp_none", "Connection: close"),
        b"no HTTP at all\r\n\r\n",
    )


def run(model: Path, n_requests: int, threads: int) -> dict[str, Any]:
    """``model`` is a folder of ``toy_model``."""
    engine = {"threads": threads, "max_num_seqs": 32, "kv_memory": 32 << 20}
    with Meter() as meter, running_server(model, executor="cpu", name="m", engine=engine) as server:
        api = psutil.Process(server.process.pid)
        processes = {"api": api, "engine": psutil.Process(server.engine_pid())}
        soak = Soak(server, processes, n_requests)
        began = time.perf_counter()
        asyncio.run(soak.run())
        seconds = time.perf_counter() - began
        wait_until(lambda: n_known(server) == 0)
        deaths = int(server.metric("kvasir_engine_deaths_total"))
    found = {name: _told(soak.samples, name) for name in processes}
    shares = {"aborted": ABORTED, "faulty": FAULTY, "clients": N_CLIENTS, "kinds": len(KINDS)}
    ended = {"statuses": dict(soak.statuses), "left": soak.n_left, "no_answer": soak.n_silent}
    told = {"requests": n_requests, "seconds": round(seconds), **shares, **ended, "deaths": deaths}
    return {**told, **found, "foreign": meter.foreign, "samples": soak.samples}


def _told(samples: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """Slope of the resident bytes, by least squares, and the ranges of what is open, after the
    warm-up."""
    kept = samples[int(WARM_SHARE * len(samples)) :]
    x = [float(sample["n"]) for sample in kept]
    rss = [float(sample[name]["rss"]) for sample in kept]
    slope = float(np.polyfit(x, rss, 1)[0])
    ranges = {
        key: [min(values), max(values)]
        for key in ("files", "threads")
        if (values := [sample[name][key] for sample in kept])
    }
    return {"bytes_per_request": round(slope, 2), "rss": [int(min(rss)), int(max(rss))], **ranges}


class Soak:
    def __init__(self, server: Server, processes: dict[str, psutil.Process], n: int) -> None:
        self._server = server
        self._processes = processes
        self._n = n
        self._rng = random.Random(1)
        self._wrong = wrong("/v1/completions")
        self.statuses: Counter[str] = Counter()
        self.n_left = 0
        self.n_silent = 0
        """Connections that ended without an answer, though nobody left."""
        self.samples: list[dict[str, Any]] = []

    async def run(self) -> None:
        await self._some(len(KINDS))
        done = 0
        self._sample(0)
        while done < self._n:
            n = min(max(1, self._n // N_SAMPLES), self._n - done)
            await self._some(n)
            done += n
            self._sample(done)

    def _sample(self, n: int) -> None:
        """Between two waves: nothing is under way."""
        self.samples.append({"n": n, **{k: _size(p) for k, p in self._processes.items()}})

    async def _some(self, n: int) -> None:
        left = iter(range(n))

        async def client() -> None:
            for _ in left:
                await self._one()

        await asyncio.gather(*(client() for _ in range(N_CLIENTS)))

    async def _one(self) -> None:
        chance = self._rng.random()
        if chance < FAULTY:
            await self._ask(self._rng.choice(self._wrong), None, "faulty")
            return
        asked = self._bytes(self._rng.choice(KINDS))
        is_left = chance < FAULTY + ABORTED
        await self._ask(asked, self._rng.random() * MOST_SECONDS if is_left else None, "valid")

    def _bytes(self, asked: Asked) -> bytes:
        path, body = asked
        varied = {**body, "stream": "use_beam_search" not in body and self._rng.random() < 0.7}
        if not varied["stream"]:
            varied.pop("stream_options", None)
        if "prompt" in body and isinstance(body["prompt"], str):
            varied["prompt"] = f"{body['prompt']} {self._rng.randrange(10**9)}"
        data = json.dumps({"model": self._server.model, **varied}).encode()
        return post_bytes(path, data, "Connection: close")

    async def _ask(self, data: bytes, patience: float | None, kind: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._server.port)
        answer = b""
        try:
            writer.write(data)
            async with asyncio.timeout(patience or PATIENCE):
                answer = await reader.read()
        except (TimeoutError, ConnectionError):
            self.n_left += patience is not None
            self.n_silent += patience is None
            return
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        if answer.startswith(b"HTTP/1.1 "):
            self.statuses[f"{kind} {answer[9:12].decode()}"] += 1
        else:
            self.n_silent += 1


def _size(process: psutil.Process) -> dict[str, int]:
    with process.oneshot():
        rss = process.memory_info().rss
        return {"rss": rss, "files": process.num_fds(), "threads": process.num_threads()}
