"""Health that tells the truth: parts that fail are named; a server that leaves says so first."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.conftest import StartServer
from tests.e2e.harness import PATIENCE, Server, first_refusal, running_server, sing, wait_until
from tests.e2e.toy_model import write_toy_model

SLOW = {"seconds": 0.005}
SONG = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "seed": 3}
CHECKS = {"memory", "model_loaded", "steps", "queue_depth"}


def health(server: Server) -> Any:
    return server.get("/health").json()


def test_an_idle_engine_is_asked_for_a_token(server: StartServer) -> None:
    with server() as running:
        before = running.metric("kvasir_generation_tokens_total")
        told = health(running)
        assert (told["status"], told["healthy"], told["checks"].keys()) == ("ready", True, CHECKS)
        assert told["checks"]["steps"]["probe_seconds"] > 0
        wait_until(lambda: running.metric("kvasir_generation_tokens_total") == before + 1)
        running.wait_idle()


def test_an_idle_engine_that_hangs_is_not_well(server: StartServer) -> None:
    with server(health_probe_ms=200) as running:
        engine = running.engine_pid()
        os.kill(engine, signal.SIGSTOP)
        reply = running.get("/health")
        assert (reply.status_code, reply.json()["status"]) == (503, "unwell: steps")
        assert reply.json()["checks"]["steps"]["probe_seconds"] is None
        os.kill(engine, signal.SIGCONT)
        wait_until(lambda: running.get("/health").status_code == 200)


def test_a_working_engine_that_hangs_is_not_well_before_it_is_killed(server: StartServer) -> None:
    with server(faults=SLOW) as running, ThreadPoolExecutor(1) as pool:
        song = pool.submit(sing, running, {**SONG, "max_tokens": 1000})
        wait_until(lambda: running.metric("kvasir_num_requests_running") == 1)
        assert "still_seconds" in health(running)["checks"]["steps"]
        os.kill(running.engine_pid(), signal.SIGSTOP)
        unwell = first_refusal(running, "/health")
        assert (unwell.status_code, unwell.json()["status"]) == (503, "unwell: steps")
        assert not any("the engine died" in line for line in running.lines)
        assert len(song.result()) > 0
        wait_until(lambda: running.get("/health").status_code == 200)


def test_deaths_and_replays_are_counted(server: StartServer) -> None:
    """What the alerts are made of."""
    counts = ("engine_deaths", "engine_hang_kills", "engine_restarts", "requests_replayed")

    def told() -> list[float]:
        return [running.metric(f"kvasir_{name}_total") for name in counts]

    with server(faults=SLOW) as running, ThreadPoolExecutor(2) as pool:
        songs = [pool.submit(sing, running, {**SONG, "max_tokens": 1000}) for _ in range(2)]
        wait_until(lambda: running.metric("kvasir_num_requests_running") == 2)
        assert told() == [0, 0, 0, 0]
        os.kill(running.engine_pid(), signal.SIGKILL)
        assert songs[0].result() == songs[1].result()
        assert told() == [1, 0, 1, 2]


def test_a_server_that_starts_says_so(tmp_path: Path) -> None:
    model, path = write_toy_model(tmp_path / "late", {"start": 5}), str(tmp_path / "kvasir.sock")
    transport = httpx.HTTPTransport(uds=path)
    client = httpx.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE)

    def run() -> None:
        with running_server(model, uds=path):
            assert client.get("/startup").json() == {"status": "started"}
            assert client.get("/health").json()["healthy"]

    def listens() -> bool:
        with socket.socket(socket.AF_UNIX) as sock:
            return sock.connect_ex(path) == 0

    with client, ThreadPoolExecutor(1) as pool:
        end = pool.submit(run)
        wait_until(listens)
        assert client.get("/live").status_code == 200
        for route in ("/startup", "/ready", "/health"):
            reply = client.get(route)
            assert (reply.status_code, reply.json()["status"]) == (503, "starting"), route
        assert not reply.json()["checks"]["model_loaded"]["ok"]
        end.result()


def test_r19_a_server_that_leaves_still_takes_requests(server: StartServer) -> None:
    with server(faults=SLOW, drain_delay=5) as running, ThreadPoolExecutor(1) as pool:
        alone = sing(running, SONG)
        song = pool.submit(sing, running, SONG)
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: running.get("/ready").status_code == 503)
        assert running.get("/ready").json() == {"status": "draining"}
        assert running.get("/startup").status_code == running.get("/live").status_code == 200
        assert sing(running, SONG) == song.result() == alone
        assert running.process.wait(PATIENCE) == 0


def test_r19_a_second_signal_does_not_wait_for_the_delay(server: StartServer) -> None:
    with server(drain_delay=1000) as running:
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: running.get("/ready").status_code == 503)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 128 + signal.SIGTERM
