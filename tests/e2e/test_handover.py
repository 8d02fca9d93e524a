"""Sockets that outlive a server: those of systemd, and those that a successor takes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.harness import (
    FAULT_ENGINE,
    PATIENCE,
    ROOT,
    Server,
    running_server,
    sing,
    wait_until,
)
from tests.e2e.toy_model import write_toy_model

RATE = 50.0
SONG = {"prompt": "sing on", "seed": 1, "max_tokens": 300, "ignore_eos": True}
SHORT = {"model": "toy", "prompt": "x", "seed": 2, "max_tokens": 4, "ignore_eos": True}


class Load:
    """Requests at ``RATE``, half of them on connections that are kept."""

    def __init__(self, server: Server) -> None:
        self._url = server.url + "/v1/completions"
        self.statuses: list[int] = []
        self.failures: list[str] = []
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._ask, args=(bool(i % 2),)) for i in range(int(RATE / 5))
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, keeps: bool) -> None:
        limits = httpx.Limits(max_keepalive_connections=int(keeps))
        with httpx.Client(timeout=PATIENCE, trust_env=False, limits=limits) as client:
            while not self._ended.wait(0.2):
                try:
                    self.statuses.append(client.post(self._url, json=SHORT).status_code)
                except httpx.HTTPError as error:
                    self.failures.append(repr(error))


def test_a_successor_takes_the_sockets_and_nobody_is_refused(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy", {"seconds": 0.005, "start": 1})
    options: dict[str, Any] = {"executor": "native", "handover": str(tmp_path / "handover")}
    with ExitStack() as stack:
        old = stack.enter_context(running_server(folder, **options))
        alone = sing(old, SONG)
        load = stack.enter_context(Load(old))
        heard: list[list[str]] = []
        wait_until(lambda: len(load.statuses) > 20)
        singing = threading.Thread(target=lambda: heard.append(sing(old, SONG)))
        singing.start()
        new = stack.enter_context(running_server(folder, **options))
        assert new.port == old.port
        assert old.process.wait(PATIENCE) == 0
        singing.join()
        n = len(load.statuses)
        wait_until(lambda: len(load.statuses) > n + 20)
        assert not load.failures
        assert set(load.statuses) == {200}
        assert heard == [alone]
        assert any("a successor accepts" in line for line in old.lines)
        third = stack.enter_context(running_server(folder, **options))
        assert new.process.wait(PATIENCE) == 0
        assert sing(third, SONG) == alone
        assert not load.failures


def test_a_connection_that_asks_for_nothing_keeps_no_server(tmp_path: Path) -> None:
    """With one it would be there for all of its ``--shutdown-timeout``."""
    folder = write_toy_model(tmp_path / "toy", {})
    options: dict[str, Any] = {"handover": str(tmp_path / "handover"), "shutdown_timeout": 600}
    with ExitStack() as stack:
        old = stack.enter_context(running_server(folder, **options))
        kept = httpx.Client(base_url=old.url, trust_env=False, timeout=PATIENCE)
        stack.enter_context(kept)
        assert kept.get("/health").status_code == 200
        silent = stack.enter_context(socket.create_connection(("127.0.0.1", old.port)))
        new = stack.enter_context(running_server(folder, **options))
        assert old.process.wait(PATIENCE) == 0
        silent.settimeout(PATIENCE)
        assert silent.recv(1) == b""
        assert kept.get("/health").status_code == 200, "it connects again"
        assert new.process.poll() is None


def test_a_successor_that_fails_is_forgotten(tmp_path: Path) -> None:
    folder = write_toy_model(tmp_path / "toy", {})
    path = str(tmp_path / "handover")
    with running_server(folder, handover=path) as server:
        with socket.socket(socket.AF_UNIX) as curious:
            wait_until(lambda: os.path.exists(path))
            assert os.stat(path).st_mode & 0o777 == 0o600
            curious.connect(path)
            curious.recv(100)
        given = {
            "serve": {"port": 0, "handover": path},
            "engine": {"model": str(tmp_path / "none")},
            "module": FAULT_ENGINE,
        }
        command = [sys.executable, "-m", "tests.e2e.fault_server", json.dumps(given)]
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=PATIENCE)
        assert ended.returncode == 1
        assert server.post("/v1/completions", SHORT).status_code == 200
        with running_server(folder, handover=path) as successor:
            assert successor.port == server.port
            assert server.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("how", ["pause?mode=keep", "sleep"])
def test_what_the_operator_held_goes_on_when_a_successor_accepts(tmp_path: Path, how: str) -> None:
    """Nobody could end the pause or the sleep any more."""
    folder = write_toy_model(tmp_path / "toy", {"seconds": 0.005})
    options = {"handover": str(tmp_path / "handover"), "admin_uds": str(tmp_path / "admin")}
    transport = httpx.HTTPTransport(uds=options["admin_uds"])
    with ExitStack() as stack:
        old = stack.enter_context(running_server(folder, **options))
        alone = sing(old, SONG)
        heard: list[list[str]] = []
        singing = threading.Thread(target=lambda: heard.append(sing(old, SONG)))
        singing.start()
        wait_until(lambda: old.metric("kvasir_num_requests_running") == 1)
        with httpx.Client(base_url="http://localhost", transport=transport) as operator:
            assert operator.post(f"/{how}", timeout=PATIENCE).status_code == 200
        stack.enter_context(running_server(folder, **options))
        singing.join()
        assert heard == [alone]
        assert old.process.wait(PATIENCE) == 0


def test_a_successor_that_is_stuck_holds_no_other_up(tmp_path: Path) -> None:
    """It learns that another was faster when it goes on."""
    folder = write_toy_model(tmp_path / "toy", {})
    path = str(tmp_path / "handover")
    given = {
        "serve": {"port": 0, "handover": path},
        "engine": {"model": str(write_toy_model(tmp_path / "slow", {"start": 2}))},
        "module": FAULT_ENGINE,
    }
    command = [sys.executable, "-m", "tests.e2e.fault_server", json.dumps(given)]
    with running_server(folder, handover=path) as server:
        wait_until(lambda: os.path.exists(path))
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(path)
            silent.recv(100)
            stuck = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
            wait_until(lambda: psutil.Process(stuck.pid).children())  # it has the sockets
            stuck.send_signal(signal.SIGSTOP)
            with running_server(folder, handover=path) as successor:
                assert successor.port == server.port
                assert server.process.wait(PATIENCE) == 0
                stuck.send_signal(signal.SIGCONT)
                _, said = stuck.communicate(timeout=PATIENCE)
                assert stuck.returncode == 1
                assert "another successor has taken the sockets" in said
                assert successor.post("/v1/completions", SHORT).status_code == 200


@contextmanager
def manager(path: Path) -> Iterator[socket.socket]:
    """Where a service tells how it is."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(path))
        sock.settimeout(PATIENCE)
        yield sock


LAUNCH = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.set_inheritable(3, True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "tests.e2e.fault_server", sys.argv[2]])
"""


def test_a_service_of_systemd(tmp_path: Path) -> None:
    """Its socket is there before it runs; it says when it is ready, that it goes on, and that it
    ends."""
    folder = write_toy_model(tmp_path / "toy", {})
    given = {"serve": {"port": 1}, "engine": {"model": str(folder)}, "module": FAULT_ENGINE}
    given["engine"]["executor"] = "fake"  # type: ignore[index]
    with socket.create_server(("127.0.0.1", 0)) as listener, manager(tmp_path / "notify") as told:
        port, fd = listener.getsockname()[1], listener.fileno()
        environ = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        environ["WATCHDOG_USEC"] = "200000"
        command = [sys.executable, "-W", "ignore", "-c", LAUNCH, str(fd), json.dumps(given)]
        with subprocess.Popen(command, cwd=ROOT, env=environ, pass_fds=(fd,)) as process:
            said = [told.recv(999)]
            while b"READY=1" not in said[-1]:
                said.append(told.recv(999))
            assert said[-1] == f"READY=1\nMAINPID={process.pid}".encode()
            answer = httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False)
            assert answer.status_code == 200
            assert [told.recv(999) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            process.send_signal(signal.SIGTERM)
            while told.recv(999) != b"STOPPING=1":
                continue
            assert process.wait(PATIENCE) == 0
