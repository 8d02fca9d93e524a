"""The operator pauses, resumes and aborts: what waits is not lost and not changed, and nobody's
request ends for another's name."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.serve.watchdog import MIN_SECONDS
from tests.e2e.harness import PATIENCE, Server, is_alive, running_server, sing, wait_until
from tests.e2e.toy_model import write_toy_model

SONG = {"prompt": "sing of pauses", "max_tokens": 150, "ignore_eos": True, "seed": 3}
N_SONGS = 8


class World:
    """A server with an admin socket, and its operator."""

    def __init__(self, server: Server, operator: httpx.Client, pool: ThreadPoolExecutor) -> None:
        self.server, self.operator, self.pool = server, operator, pool
        self.songs = [{**SONG, "seed": seed} for seed in range(N_SONGS)]
        self.alone = list(pool.map(self.sing, self.songs))

    def sing(self, song: dict[str, Any]) -> list[str]:
        return sing(self.server, song)

    def choir(self) -> list[Future[list[str]]]:
        """Songs that all run, of which some tokens are told."""
        told = self.server.metric("kvasir_generation_tokens_total")
        found = [self.pool.submit(self.sing, song) for song in self.songs]
        wait_until(lambda: self.server.metric("kvasir_num_requests_running") == N_SONGS)
        wait_until(lambda: self.server.metric("kvasir_generation_tokens_total") > told + 50)
        return found

    def post(self, path: str, **body: Any) -> Any:
        reply = self.operator.post(path, json=body) if body else self.operator.post(path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    @property
    def is_paused(self) -> bool:
        return bool(self.operator.get("/is_paused").json()["is_paused"])


@contextmanager
def opened(folder: Path) -> Iterator[World]:
    model, sock = write_toy_model(folder / "toy", {"seconds": 0.01}), str(folder / "admin")
    transport = httpx.HTTPTransport(uds=sock)
    with (
        running_server(model, admin_uds=sock) as server,
        httpx.Client(base_url="http://localhost", transport=transport, timeout=PATIENCE) as client,
        ThreadPoolExecutor(3 * N_SONGS) as pool,
    ):
        yield World(server, client, pool)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with opened(tmp_path_factory.mktemp("paused")) as world:
        yield world


def test_a_frozen_engine_goes_on_where_it_was(world: World) -> None:
    server, choir = world.server, world.choir()
    assert world.post("/pause?mode=keep") == {"status": "paused"}
    assert world.post("/pause?mode=keep&clear_cache=false") == {"status": "paused"}
    late = [world.pool.submit(world.sing, song) for song in world.songs]
    time.sleep(1)  # what was computed is told
    told = server.metric("kvasir_generation_tokens_total")
    engine = server.engine_pid()
    time.sleep(MIN_SECONDS + 1)  # longer than an engine may stand still that should go on
    assert server.metric("kvasir_generation_tokens_total") == told
    assert server.engine_pid() == engine and is_alive(engine)
    assert not any(song.done() for song in (*choir, *late))
    assert server.get("/ready").json() == {"status": "paused"}
    assert server.get("/ready").status_code == 503
    assert server.get("/health").json()["healthy"] and world.is_paused
    assert server.get("/v1/kv_cache").json()["running"] == N_SONGS
    assert world.post("/resume") == {"status": "resumed"}
    assert [song.result() for song in (*choir, *late)] == world.alone * 2
    assert not world.is_paused and server.get("/ready").status_code == 200


def test_an_engine_that_dies_frozen_is_frozen_again(world: World) -> None:
    choir = world.choir()
    world.post("/pause?mode=keep")
    engine = world.server.engine_pid()
    os.kill(engine, signal.SIGKILL)
    wait_until(lambda: not is_alive(engine))
    wait_until(lambda: world.server.metric("kvasir_engine_restarts_total") >= 1)
    time.sleep(1)
    assert not any(song.done() for song in choir) and world.is_paused
    world.post("/resume")
    assert [song.result() for song in choir] == world.alone


def test_a_pause_waits_for_what_runs(world: World) -> None:
    choir = world.choir()
    assert world.post("/pause?mode=wait") == {"status": "paused"}
    assert world.server.metric("kvasir_num_requests_running") == 0
    assert [song.result(PATIENCE) for song in choir] == world.alone
    late = [world.pool.submit(world.sing, song) for song in world.songs]
    time.sleep(0.3)
    assert not any(song.done() for song in late)
    assert world.server.metric("kvasir_num_requests_running") == 0
    world.post("/resume")
    assert [song.result() for song in late] == world.alone


def test_a_pause_aborts_what_runs(world: World) -> None:
    asked = {"model": world.server.model, **SONG}
    whole = world.pool.submit(world.server.post, "/v1/completions", {**SONG, "max_tokens": 2000})
    events = world.pool.submit(last_data, world.server, {**asked, "max_tokens": 2000})
    wait_until(lambda: world.server.metric("kvasir_num_requests_running") == 2)
    n_told = world.server.metric("kvasir_generation_tokens_total")
    wait_until(lambda: world.server.metric("kvasir_generation_tokens_total") > n_told + 50)
    world.post("/pause")
    assert (whole.result().status_code, whole.result().json()["error"]["code"]) == (503, "aborted")
    assert events.result()["error"]["code"] == "aborted"
    world.post("/resume")
    assert [world.sing(song) for song in world.songs[:2]] == world.alone[:2]


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_searches_of_beams_in_a_pause(world: World, mode: str) -> None:
    """Each of their tokens is asked for anew: what has begun goes on, to its end if that is waited
    for, and what is aborted ends."""
    server = world.server
    beams = [{"prompt": f"beams {i}", "n": 2, "use_beam_search": True, "max_tokens": 40,
              "ignore_eos": True} for i in range(4)]  # fmt: skip

    def search(body: dict[str, Any]) -> Any:
        answer = server.post("/v1/completions", body).json()
        return answer.get("choices") or answer["error"]["code"]

    alone = list(world.pool.map(search, beams))
    told = server.metric("kvasir_generation_tokens_total")
    found = [world.pool.submit(search, body) for body in beams]
    wait_until(lambda: server.metric("kvasir_generation_tokens_total") > told + 30)
    world.post(f"/pause?mode={mode}&clear_cache=false")
    if mode == "keep":
        time.sleep(0.3)
        assert not any(one.done() for one in found)
    else:
        assert server.metric("kvasir_num_requests_running") == 0
    world.post("/resume")
    expected = ["aborted"] * 4 if mode == "abort" else alone
    assert [one.result(PATIENCE) for one in found] == expected
    wait_until(lambda: server.metric("kvasir_kv_cache_usage_perc") == 0)


@pytest.mark.parametrize("more", [{}, {"n": 2, "use_beam_search": True, "seed": None}])
def test_who_leaves_a_pause_gives_its_place_up(world: World, more: dict[str, Any]) -> None:
    server = world.server
    body = {"model": server.model, **SONG, **more}
    world.post("/pause?mode=wait")
    for _ in range(3):
        with pytest.raises(httpx.ReadTimeout):
            server.http.post(server.url + "/v1/completions", json=body, timeout=0.3)
    wait_until(lambda: server.get("/load").json() == {"server_load": 0})
    assert world.is_paused
    world.post("/resume")
    assert server.post("/v1/completions", {**SONG, **more}).status_code == 200


def last_data(server: Server, body: dict[str, Any]) -> Any:
    url = server.url + "/v1/completions"
    with server.http.stream("POST", url, json={**body, "stream": True}) as response:
        lines = [line for line in response.iter_lines() if line.startswith("data: {")]
    return json.loads(lines[-1].removeprefix("data: "))


def test_one_request_is_aborted_by_its_whole_id(world: World) -> None:
    server, choir = world.server, world.choir()
    body = {"model": server.model, **SONG, "max_tokens": 2000, "stream": True, "n": 2}
    with server.http.stream("POST", server.url + "/v1/completions", json=body) as response:
        lines = (line for line in response.iter_lines() if line)
        name = json.loads(next(lines).removeprefix("data: "))["id"]
        for other in (name[:-1], name[:8], name + "0", "", "*", name.upper()):
            answer = world.post("/abort_requests", request_ids=[other])
            assert answer == {"status": "aborted", "requests": 0}, other
        answer = world.post("/abort_requests", request_ids=[name, name])
        assert answer == {"status": "aborted", "requests": 1}
        *_, last = [line for line in lines if line.startswith("data: {")]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "aborted"
    assert world.post("/abort_requests", request_ids=[name])["requests"] == 0
    assert [song.result() for song in choir] == world.alone
    assert world.operator.post("/abort_requests", json={"ids": []}).status_code == 400


def test_what_cannot_be_is_refused(world: World) -> None:
    for query in ("mode=sleep", "clear_cache=perhaps", "wait_for_inflight_requests=true"):
        assert world.operator.post(f"/pause?{query}").status_code == 400
    assert not world.is_paused
    assert world.server.http.post(world.server.url + "/pause").status_code == 404


def test_a_server_that_is_told_to_end_resumes(tmp_path: Path) -> None:
    with opened(tmp_path) as mortal:
        choir = mortal.choir()
        mortal.post("/pause?mode=keep")
        mortal.server.process.send_signal(signal.SIGTERM)
        assert [song.result() for song in choir] == mortal.alone
        assert mortal.server.process.wait(PATIENCE) == 0
