"""Start, drain and end: R19, and health that tells the truth. Deaths are in ``test_survival``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import (
    AT_ONCE,
    MODEL,
    PATIENCE,
    ROOT,
    Refused,
    Server,
    is_alive,
    last_event,
    n_known,
    running_server,
    sing,
    wait_until,
)

BOTH = pytest.mark.parametrize("executor", ["fake", "native"])
SLOW = {"seconds": 0.005}
SONG = {"prompt": "x", "max_tokens": 200, "ignore_eos": True, "seed": 3}


def sing_or_refusal(server: Server, song: dict[str, Any]) -> list[str] | str:
    """What ``sing`` hears, or a refusal's code; "draining" too when nobody listens any more."""
    try:
        return sing(server, song)
    except Refused as refused:
        return str(refused)
    except (httpx.ConnectError, httpx.RemoteProtocolError):
        return "draining"


def test_ready_server_is_well(toy: Server) -> None:
    for path in ("/live", "/startup", "/ready", "/health", "/v1/health", "/ping"):
        assert toy.get(path).status_code == 200, path
    assert toy.get("/version").json()["version"]


@BOTH
def test_r19_sigterm_drains(server: StartServer, executor: str) -> None:
    options: dict[str, Any] = {"faults": SLOW, "executor": executor, "shutdown_timeout": 60}
    with server(**options) as running, ThreadPoolExecutor(100) as pool:
        song = {**SONG, "max_tokens": 120}
        alone = sing(running, song)
        songs = [pool.submit(sing_or_refusal, running, song) for _ in range(100)]
        wait_until(lambda: running.metric("kvasir_num_requests_waiting") > 0)
        n_inside = n_known(running)
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: running.get("/ready").status_code == 503, AT_ONCE)
        assert running.get("/live").status_code == 200
        refused = running.post("/v1/completions", SONG)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "draining"
        ends = [song.result() for song in songs]
        assert ends.count(alone) >= n_inside
        assert all(end in (alone, "draining") for end in ends)
        assert running.process.wait(PATIENCE) == 0


@BOTH
def test_r19_drain_limit_ends_streams_with_an_error(server: StartServer, executor: str) -> None:
    with (
        server(faults=SLOW, executor=executor, shutdown_timeout=1) as running,
        ThreadPoolExecutor(1) as pool,
    ):
        event = pool.submit(last_event, running, {**SONG, "max_tokens": 4000})
        wait_until(lambda: running.metric("kvasir_num_requests_running") == 1)
        running.process.send_signal(signal.SIGTERM)
        assert json.loads(event.result().removeprefix("data: "))["error"]["code"] == "draining"
        assert running.process.wait(PATIENCE) == 0


@BOTH
def test_r19_second_sigterm_exits_now(server: StartServer, executor: str) -> None:
    with server(faults=SLOW, executor=executor) as running:
        engine = running.engine_pid()
        done = threading.Event()

        def listen() -> None:
            try:
                last_event(running, {**SONG, "max_tokens": 4000})
            except httpx.HTTPError:
                done.set()

        thread = threading.Thread(target=listen)
        thread.start()
        wait_until(lambda: running.metric("kvasir_num_requests_running") == 1)
        running.process.send_signal(signal.SIGTERM)
        wait_until(lambda: running.get("/ready").status_code == 503, AT_ONCE)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(AT_ONCE) != 0
        thread.join(PATIENCE)
        assert done.is_set()
        wait_until(lambda: not is_alive(engine), AT_ONCE)


def test_r19_idle_server_stops_at_once(server: StartServer) -> None:
    with server() as running:
        engine = running.engine_pid()
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(AT_ONCE) == 0
        assert not is_alive(engine)


@BOTH
def test_engine_ends_with_its_parent(server: StartServer, executor: str) -> None:
    with server(faults=SLOW, executor=executor) as running:
        engine = running.engine_pid()
        running.process.kill()
        running.process.wait(PATIENCE)
        wait_until(lambda: not is_alive(engine), PATIENCE)


def test_missing_model_ends_with_a_message(tmp_path: Path) -> None:
    given = {
        "serve": {"port": 0},
        "engine": {"model": str(tmp_path / "none.gguf")},
        "module": "tests.e2e.fault_engine",
    }
    command = [sys.executable, "-m", "tests.e2e.fault_server", json.dumps(given)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 1
    assert "none.gguf" in ended.stderr


def test_taken_port_ends_with_a_message(toy: Server, toy_folder: Path) -> None:
    given = {
        "serve": {"port": toy.port},
        "engine": {"model": str(toy_folder)},
        "module": "tests.e2e.fault_engine",
    }
    command = [sys.executable, "-m", "tests.e2e.fault_server", json.dumps(given)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 2
    assert str(toy.port) in ended.stderr


def test_unix_socket(toy_folder: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "kvasir.sock")
    with running_server(toy_folder, uds=path) as running:
        transport = httpx.HTTPTransport(uds=path)
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            assert client.get("/v1/models").json()["data"][0]["id"] == MODEL
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 0
    assert not Path(path).exists()
