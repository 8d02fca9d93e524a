"""R58 and R118 to R120 of the robustness list on a running server: storms of cancels, arrivals at
random, bursts, and more than it can do, while two streams sing. What is in time is told in virtual
time, in ``unit/test_load_shapes``."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.canaries import Watch, watching
from tests.e2e.conftest import StartServer
from tests.e2e.harness import (
    Reply,
    Server,
    canaries,
    connect,
    exchange,
    post_bytes,
    step_back,
    wait_until,
)

TEXT = "/v1/completions"
FREE: dict[str, Any] = {"prompt": "a short one", "max_tokens": 8, "ignore_eos": True}
QUEUE = 32
STORM = {"prompt": [[i + 2] for i in range(8)], "n": 128, "max_tokens": 400, "stream": True}
"""Choices: 1,024 in each of ten requests."""
N_STORMS = 10
FULL = "/health was answered with b'HTTP/1.1 503"
"""As it is while the queue is full."""


def storm(server: Server, n: int) -> None:
    """``n`` requests are begun and left as fast as it goes; a 429 says that those before are not
    gone yet."""
    body = {"model": server.model, "ignore_eos": True, **STORM}
    asked = post_bytes(TEXT, json.dumps(body).encode())
    while n:
        with connect(server) as sock:
            sock.sendall(asked)
            status = sock.recv(100)[:12]
            assert status in (b"HTTP/1.1 200", b"HTTP/1.1 429")
            n -= status.endswith(b"200")
    wait_until(lambda: server.post(TEXT, FREE).status_code == 200)


@pytest.mark.parametrize("name", ["toy", "native_toy"])
def test_r58_a_storm_of_cancels(request: pytest.FixtureRequest, name: str) -> None:
    """10,000 choices are asked for, begun and left, and whoever sings meanwhile may find the queue
    full. Then all is given back, and whoever comes is answered."""
    server: Server = request.getfixturevalue(name)
    metric = "kvasir_requests_cancelled_total"
    storm(server, N_STORMS)  # What the first leave with the allocator is no leak.
    with canaries(server, frozenset({"queue_full"}), rss_slack=32 << 20):
        before = server.metric(metric)
        storm(server, N_STORMS)
        wait_until(lambda: server.metric(metric) == before + N_STORMS)


@pytest.fixture
def watch(server: StartServer) -> Iterator[Watch]:
    """Of a server that can do little, whose queue is short."""
    with server(faults={"seconds": 0.005}, max_queued_requests=QUEUE) as running:
        Arrivals(running).come((2000.0, 0.5))  # What the first leave with the allocator is no leak.
        running.wait_idle()
        yield from listened(running)


def listened(server: Server) -> Iterator[Watch]:
    with watching(server) as found:
        yield found


class Arrivals:
    """Requests at random, each from a thread of its own that does not mind the others."""

    def __init__(self, server: Server) -> None:
        self._random = random.Random(1)
        bodies = [{"model": server.model, **FREE, "seed": seed} for seed in range(4)]
        self._asked = [
            post_bytes(TEXT, json.dumps(b).encode(), "Connection: close") for b in bodies
        ]
        self._server = server
        self.alone = [self._choices(exchange(server, asked)) for asked in self._asked]

    def come(self, *phases: tuple[float, float]) -> Counter[int]:
        """At so many a second for so many seconds; statuses of their answers. Whatever is answered
        is what was answered alone, and who is refused is told when to come again."""
        found: list[tuple[int, Future[Reply | None]]] = []
        with ThreadPoolExecutor(128, initializer=step_back) as pool:
            for rate, seconds in phases:
                ends = time.monotonic() + seconds
                while (now := time.monotonic()) < ends:
                    song = self._random.randrange(len(self._asked))
                    found.append((song, pool.submit(exchange, self._server, self._asked[song])))
                    time.sleep(max(0.0, now + self._random.expovariate(rate) - time.monotonic()))
        statuses: Counter[int] = Counter()
        for song, reply in found:
            answer = reply.result()
            assert answer is not None
            statuses[answer.status] += 1
            if answer.status == 200:
                assert self._choices(answer) == self.alone[song]
            else:
                assert answer.json()["error"]["code"] == "queue_full"
                assert int(answer.headers["retry-after"]) >= 1
        return statuses

    @staticmethod
    def _choices(reply: Reply | None) -> Any:
        assert reply is not None and reply.status == 200
        return reply.json()["choices"]


def test_r118_r119_r120_steady_and_in_bursts(watch: Watch) -> None:
    """The streams are of a class of their own, and are never refused."""
    found: list[Counter[int]] = []

    def attack(server: Server) -> None:
        arrivals = Arrivals(server)
        found.append(arrivals.come((20.0, 1.5)))
        found.append(arrivals.come((20.0, 0.5), (2000.0, 1.5), (20.0, 1.0)))

    verdict = watch.during(attack)
    assert all(FULL in fault for fault in verdict.faults), verdict
    steady, burst = found
    assert steady.keys() == {200} and sum(steady.values()) > 10
    assert burst.keys() <= {200, 429} and burst[200] > 20
