"""R75 of the robustness list on a running server: the wall clock jumps, the log takes nothing, and
there is no room in /dev/shm; two streams do not notice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import (
    FAULT_ENGINE,
    MODEL,
    PATIENCE,
    ROOT,
    Server,
    canaries,
    connect,
    post_bytes,
    read_reply,
    reserved_port,
    running_server,
    wait_until,
)
from tests.e2e.test_survival import n_deaths
from tests.endurance.__main__ import jumping_clock

TEXT = "/v1/completions"
DAY = 86_400
DUE = {"prompt": "x", "max_tokens": 4, "ttft_ms": 60_000, "deadline_ms": 60_000}
COMPILER = os.environ.get("CC", "cc")


def test_what_came_while_the_server_stood_still_is_not_late(server: StartServer) -> None:
    """As on a machine that was suspended: its timers see the end of a client's time first."""
    body = json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 2}).encode()
    with server(header_timeout=1) as running, connect(running) as sock:
        assert running.get("/health").status_code == 200  # the connection before is accepted, too
        running.process.send_signal(signal.SIGSTOP)
        sock.sendall(post_bytes(TEXT, body))
        time.sleep(1.5)
        running.process.send_signal(signal.SIGCONT)
        reply = read_reply(sock)
        assert reply is not None and reply.status == 200


@pytest.mark.skipif(shutil.which(COMPILER) is None, reason="needs a C compiler")
@pytest.mark.parametrize("executor", ["fake", "native"])
def test_r75_the_wall_clock_jumps(
    toy_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str
) -> None:
    """A year and a day to either side, while time limits run; no engine is taken for hung."""
    for name in ("LD_PRELOAD", "CLOCK_OFFSET"):
        monkeypatch.setenv(name, "")  # to be as it was afterwards
    offset = jumping_clock(tmp_path)
    with running_server(toy_folder, executor=executor, request_timeout=60) as server:
        monkeypatch.undo()
        with canaries(server):
            created = []
            for days in (0, 1, -1, 366, -366, 0):
                offset.write_text(f"{days * DAY}\n")
                reply = server.post(TEXT, DUE)
                assert reply.status_code == 200
                created.append(reply.json()["created"])
                time.sleep(0.1)
        assert created[3] - created[4] > 700 * DAY, "the clock did jump"
        assert n_deaths(server) == 0


@contextmanager
def full_log(folder: Path, executor: str) -> Iterator[Server]:
    """A server whose log is a full disk."""
    engine = {"model": str(folder), "executor": executor, "served_model_name": "toy"}
    with open("/dev/full", "w") as full, reserved_port() as port:
        serve = {"port": port, "enable_log_requests": True, "log_level": "debug"}
        given = {"serve": serve, "engine": engine, "module": FAULT_ENGINE}
        command = [sys.executable, "-m", "tests.e2e.fault_server", json.dumps(given)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=full, stderr=full, text=True)
        server = Server(process, port, [])
        try:
            with server.http:
                wait_until(lambda: is_up(server))
                yield server
        finally:
            process.terminate()
            assert process.wait(PATIENCE) == 0


def is_up(server: Server) -> bool:
    assert server.process.poll() is None, "it ended"
    try:
        return server.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("executor", ["fake", "cpu"])
def test_r75_a_log_on_a_full_disk(toy_folder: Path, executor: str) -> None:
    with full_log(toy_folder, executor) as server, canaries(server):
        for status, body in ((200, {"prompt": "x", "max_tokens": 4}), (400, {"prompt": ""})):
            assert server.post(TEXT, body).status_code == status


def test_r75_nothing_lies_in_shared_memory_that_can_be_full(native_toy: Server) -> None:
    """What the two processes share has no name and no bound of a mount."""
    assert native_toy.post(TEXT, {"prompt": "x", "max_tokens": 2}).is_success
    for pid in (native_toy.process.pid, native_toy.engine_pid()):
        mapped = Path(f"/proc/{pid}/maps").read_text()
        assert not re.search(r"/dev/shm/", mapped)
        files = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        assert not [name for name in files if name.startswith("/dev/shm/")]
