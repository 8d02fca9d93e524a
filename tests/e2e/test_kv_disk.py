"""A conversation goes on after the server was killed: its KV blocks are on disk."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kvasir.exec.disk.segment import Extent, Segment
from tests.e2e.conftest import StartServer
from tests.e2e.harness import REAL_ENGINE, Server, is_alive, wait_until
from tests.e2e.test_sleep import ADMIN, admin
from tests.e2e.test_survival import swap

SYSTEM = "You know every saga by heart and tell them slowly. " * 4


def options(folder: Path) -> dict[str, Any]:
    disk = {"kv_disk": str(folder), "kv_disk_size": "4MiB"}
    return {"executor": "fake", "module": REAL_ENGINE, "engine": disk}


def tell(server: Server, messages: list[dict[str, str]]) -> tuple[str, int]:
    """Text, and tokens of the prompt that were cached."""
    body = {"messages": messages, "temperature": 0, "max_tokens": 40, "ignore_eos": True}
    answer = server.post("/v1/chat/completions", body).json()
    cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return answer["choices"][0]["message"]["content"], cached


def n_saved(folder: Path) -> int:
    """Blocks on disk."""
    return sum(len(read_places(path)) for path in folder.glob("*.kvseg"))


def read_places(path: Path) -> dict[bytes, Extent]:
    segment = Segment.open(path)
    segment.close()
    return segment.places


def test_a_conversation_survives_kill_9(server: StartServer, tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Begin."}]
    with server(**options(folder)) as running:
        first, cached = tell(running, messages)
        assert cached == 0
        messages += [{"role": "assistant", "content": first}, {"role": "user", "content": "Go on."}]
        expected, cached = tell(running, messages)
        assert cached >= 200
        wait_until(lambda: n_saved(folder) >= cached // 16)  # an idle engine saves what is cached
        engine = running.engine_pid()
        os.kill(engine, signal.SIGKILL)
        os.kill(running.process.pid, signal.SIGKILL)
        running.process.wait()
        wait_until(lambda: not is_alive(engine))
    with server(**options(folder)) as running:
        again, from_disk = tell(running, messages)
        assert again == expected
        assert from_disk >= 192
        assert running.metric("kvasir_kv_disk_hits_total") == from_disk
        assert running.metric("kvasir_kv_disk_blocks_loaded_total") == from_disk / 16


@pytest.mark.parametrize("how", ["killed", "asleep"])
def test_a_reset_that_an_engine_does_not_hear_is_done_by_the_next(
    server: StartServer, tmp_path: Path, how: str
) -> None:
    folder = tmp_path / "kv"
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Begin."}]
    with server(**options(folder), **ADMIN) as running, ThreadPoolExecutor(1) as pool:
        tell(running, messages)
        _, cached = tell(running, messages)
        assert cached >= 192
        wait_until(lambda: n_saved(folder) >= cached // 16)
        if how == "killed":
            engine = running.engine_pid()
            os.kill(engine, signal.SIGSTOP)
            asked = pool.submit(admin, running, "POST", "/reset_prefix_cache")
            time.sleep(0.2)
            assert not asked.done()
            os.kill(engine, signal.SIGKILL)
            assert asked.result().json() == {"status": "reset"}
        else:
            assert admin(running, "POST", "/sleep").status_code == 200
            asked = pool.submit(admin, running, "POST", "/reset_prefix_cache")
            assert asked.result().json() == {"status": "reset"}
            assert admin(running, "POST", "/wake_up").status_code == 200
        assert tell(running, messages)[1] == 0


def test_a_second_server_on_the_same_directory_is_refused(
    server: StartServer, tmp_path: Path
) -> None:
    with server(**options(tmp_path / "kv")) as running:
        assert tell(running, [{"role": "user", "content": "Hello."}])[0]
        try:
            with server(**options(tmp_path / "kv")):
                raise RuntimeError("it started")
        except AssertionError as error:
            assert f"is used by another engine (process {running.engine_pid()} on " in str(error)
            assert "give each engine a directory of its own" in str(error)
        assert tell(running, [{"role": "user", "content": "Hello."}])[0]


def test_neither_a_successor_nor_another_engine_shares_the_directory(
    server: StartServer, tmp_path: Path
) -> None:
    """Both begin beside the one that has it. They are refused, and it goes on."""
    hello = [{"role": "user", "content": "Hello."}]
    shared = {**options(tmp_path / "kv"), "handover": str(tmp_path / "handover")}
    with server(**shared, admin_port=0, admin_key="operator") as running:
        before, engine = tell(running, hello)[0], running.engine_pid()
        swapped = swap(running, max_num_seqs=16)
        assert swapped.status_code == 503
        assert f"(process {engine} on " in swapped.json()["error"]["message"]
        try:
            with server(**shared):
                raise RuntimeError("it started")
        except AssertionError as error:
            assert f"is used by another engine (process {engine} on " in str(error)
        assert running.engine_pid() == engine
        assert tell(running, hello)[0] == before
