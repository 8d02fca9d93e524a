"""An engine that sleeps: its process is gone, nothing that was asked is lost, and only who may wake
it does: R110."""

from __future__ import annotations

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import PATIENCE, Server, is_alive, sing, wait_until

SLOW = {"seconds": 0.004}
ADMIN: dict[str, Any] = {"admin_port": 0, "admin_key": "operator"}
SONG = {"prompt": "sing of sleep", "max_tokens": 80, "ignore_eos": True, "seed": 3}
BOTH = pytest.mark.parametrize("executor", ["fake", "native"])


def admin(server: Server, method: str, path: str) -> httpx.Response:
    found = [re.search(r"admin routes at (\S+)", line) for line in server.lines]
    url = next(match[1] for match in found if match)
    headers = {"Authorization": "Bearer operator"}
    return httpx.request(method, url + path, headers=headers, timeout=PATIENCE, trust_env=False)


def is_asleep(server: Server) -> bool:
    asleep: bool = admin(server, "GET", "/is_sleeping").json()["is_sleeping"]
    return asleep


@BOTH
def test_r110_sleep_under_load_loses_and_changes_nothing(
    server: StartServer, executor: str
) -> None:
    songs = [{**SONG, "seed": seed, "prompt": f"song {seed % 5}"} for seed in range(40)]
    with (
        server(faults=SLOW, executor=executor, **ADMIN) as running,
        ThreadPoolExecutor(2 * len(songs)) as pool,
    ):
        alone = list(pool.map(lambda song: sing(running, song), songs))
        told = running.metric("kvasir_generation_tokens_total")
        heard = [pool.submit(sing, running, song) for song in songs]
        wait_until(lambda: running.metric("kvasir_generation_tokens_total") > told + 500)
        engine = running.engine_pid()
        assert admin(running, "POST", "/sleep?level=1").json() == {"status": "asleep"}
        assert not is_alive(engine) and is_asleep(running)
        assert running.get("/ready").json() == {"status": "asleep"}
        assert running.get("/ready").status_code == 503
        late = [pool.submit(sing, running, song) for song in songs]
        assert running.get("/health").json()["healthy"]
        assert running.get("/v1/models").status_code == 200
        time.sleep(1)
        assert is_asleep(running) and not any(each.done() for each in late)
        assert not all(each.done() for each in heard)
        assert admin(running, "POST", "/wake_up").json() == {"status": "awake"}
        assert not is_asleep(running) and running.get("/ready").status_code == 200
        assert [each.result() for each in heard] == [each.result() for each in late] == alone
        assert running.metric("kvasir_engine_deaths_total") == 0
        assert running.metric("kvasir_engine_sleeps_total") == 1
        assert running.metric("kvasir_generation_tokens_total") >= told


@BOTH
def test_an_idle_engine_sleeps_and_a_request_wakes_it(server: StartServer, executor: str) -> None:
    with server(executor=executor, sleep_idle_seconds=1, **ADMIN) as running:
        alone = sing(running, SONG)
        wait_until(lambda: is_asleep(running))
        n_before = running.metric("kvasir_engine_sleeps_total")  # before it sang, too, perhaps
        for n_sleeps in (0, 1):
            wait_until(lambda: is_asleep(running))
            assert running.metric("kvasir_engine_sleeps_total") == n_before + n_sleeps
            assert len(psutil.Process(running.process.pid).children()) == 0
            for path in ("/health", "/metrics", "/ready", "/live", "/v1/models", "/v1/kv_cache"):
                assert running.get(path).status_code == 200
            assert running.metric("kvasir_kv_cache_usage_perc") == 0
            assert running.metric("kvasir_engine_sleeping") == 1
            time.sleep(1)
            assert is_asleep(running)
            assert sing(running, SONG) == alone
        assert not any("died" in line for line in running.lines)


def test_who_is_woken_by_the_operator_stays_awake_for_a_while(server: StartServer) -> None:
    """And both wait for the engine: who wakes it while it falls asleep, too."""
    with server(sleep_idle_seconds=1, **ADMIN) as running, ThreadPoolExecutor(2) as pool:
        for wake in (
            lambda: admin(running, "POST", "/wake_up"),
            lambda: running.post("/api/generate", {"prompt": ""}),
        ):
            wait_until(lambda: is_asleep(running))
            assert wake().status_code == 200
            began = time.monotonic()
            wait_until(lambda: is_asleep(running))
            assert time.monotonic() - began > 0.7
        assert admin(running, "POST", "/wake_up").status_code == 200
        os.kill(engine := running.engine_pid(), signal.SIGSTOP)
        asleep = pool.submit(admin, running, "POST", "/sleep")
        time.sleep(0.2)
        awake = pool.submit(admin, running, "POST", "/wake_up")
        time.sleep(0.2)
        assert not awake.done()
        os.kill(engine, signal.SIGCONT)
        assert asleep.result().status_code == awake.result().status_code == 200
        assert running.engine_pid() != engine


@pytest.mark.parametrize("how", ["/sleep", "/pause?mode=wait", "/pause?mode=keep"])
def test_time_limits_hold_while_nothing_is_computed(server: StartServer, how: str) -> None:
    limits = {
        "ttft_ms": ({"ttft_ms": 1000}, "deadline_exceeded"),
        "deadline_ms": ({"deadline_ms": 1000, "stream": True}, "deadline_exceeded"),
        "beams": ({"deadline_ms": 1000, "n": 2, "use_beam_search": True}, "deadline_exceeded"),
        "server": ({"deadline_ms": 60_000}, "request_timeout"),
    }
    with server(request_timeout=4, **ADMIN) as running, ThreadPoolExecutor(4) as pool:
        assert admin(running, "POST", how).status_code == 200
        asked = {
            name: pool.submit(running.post, "/v1/completions", {**SONG, **more})
            for name, (more, _) in limits.items()
        }
        for name, (_, code) in limits.items():
            reply = asked[name].result()
            assert (reply.status_code, reply.json()["error"]["code"]) == (504, code)
        assert admin(running, "POST", "/resume").status_code == 200
        assert admin(running, "POST", "/wake_up").status_code == 200
        assert sing(running, SONG)
        running.wait_idle()


def test_questions_about_health_keep_nobody_awake(server: StartServer) -> None:
    with server(sleep_idle_seconds=2, **ADMIN) as running:
        running.get("/health")  # a probe
        wait_until(lambda: running.get("/health").status_code == 200 and is_asleep(running))


def test_who_is_busy_does_not_sleep(server: StartServer) -> None:
    with (
        server(faults={"seconds": 0.05}, sleep_idle_seconds=1) as running,
        ThreadPoolExecutor(2) as pool,
    ):
        short, long = (
            pool.submit(sing, running, {**SONG, "max_tokens": n, "seed": n}) for n in (60, 120)
        )
        wait_until(lambda: running.metric("kvasir_num_requests_running") == 2)
        before = running.metric("kvasir_engine_sleeps_total")  # it may have been idle before
        short.result()
        assert running.metric("kvasir_engine_sleeps_total") == before
        assert not long.done()


def test_a_server_that_sleeps_drains(server: StartServer) -> None:
    with server(**ADMIN) as running, ThreadPoolExecutor(1) as pool:
        alone = sing(running, SONG)
        admin(running, "POST", "/sleep")
        heard = pool.submit(sing, running, SONG)
        wait_until(lambda: running.metric("kvasir_engine_sleeping") == 1)
        time.sleep(0.5)
        running.process.send_signal(signal.SIGTERM)
        assert heard.result() == alone
        assert running.process.wait(PATIENCE) == 0


def test_a_sleeping_server_without_requests_ends_at_once(server: StartServer) -> None:
    with server(**ADMIN) as running:
        admin(running, "POST", "/sleep")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(PATIENCE) == 0


def test_routes_of_sleep_are_the_operators(server: StartServer) -> None:
    with server(**ADMIN) as running:
        assert running.post("/sleep", {}).status_code == 404
        assert admin(running, "POST", "/sleep?level=3").status_code == 400
        assert admin(running, "POST", "/sleep?depth=1").status_code == 400
        assert admin(running, "POST", "/wake_up?tags=weights").status_code == 400
        assert admin(running, "POST", "/wake_up").json() == {"status": "awake"}
        for _ in range(2):
            assert admin(running, "POST", "/sleep?level=2").status_code == 200
        assert admin(running, "POST", "/engine/swap").status_code in (400, 409, 415)
        assert admin(running, "POST", "/wake_up").status_code == 200
        assert running.metric("kvasir_engine_sleeps_total") == 1
