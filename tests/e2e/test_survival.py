"""Engines that die, hang, or are replaced, under requests that do not notice: R20."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from kvasir.serve.supervisor import MIN_START_SECONDS
from tests.e2e.asked import ask, beams, streams
from tests.e2e.conftest import StartServer
from tests.e2e.harness import (
    PATIENCE,
    Server,
    canaries,
    connect,
    is_alive,
    last_event,
    n_known,
    post_bytes,
    wait_until,
)

LONG = "KVASIR_KILLS" in os.environ
N_KILLS, N_COPIES = (10, 4) if LONG else (2, 1)
SLOW = {"seconds": 0.004}
FREE = {"prompt": "sing of a crash", "max_tokens": 160, "ignore_eos": True}
ASKED = tuple((path, {**body, "stream": True}) for path, body in streams(FREE)) + beams()
FREED = tuple((path, body) for path, body in ASKED if "cache_ttl" not in body)
"""Of which no blocks are left."""


LASTING = ("/v1/completions", {**FREE, "max_tokens": 400, "temperature": 0, "stream": True})
"""Long enough for several to be seen at once."""
POINTS = ("before", "inside", "after", "frame")
"""Of a step."""


def n_tokens(server: Server) -> float:
    return server.metric("kvasir_generation_tokens_total")


def n_deaths(server: Server) -> int:
    return int(server.metric("kvasir_engine_deaths_total"))


def is_ready(server: Server) -> bool:
    return server.get("/ready").status_code == 200


def send(server: Server, number: int) -> None:
    """A signal, once the engine has told something; returns when another engine goes on."""
    n_before, told = n_deaths(server), n_tokens(server)
    wait_until(lambda: n_tokens(server) > told + 200)
    os.kill(server.engine_pid(), number)
    wait_until(lambda: n_deaths(server) > n_before)
    wait_until(lambda: is_ready(server))


@pytest.fixture(params=["fake", "native"])
def executor(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_kills_under_streams_of_every_kind_change_no_byte(
    server: StartServer, executor: str
) -> None:
    with server(faults=SLOW, executor=executor) as running, ThreadPoolExecutor(128) as pool:
        alone = list(pool.map(lambda asked: ask(running, asked), ASKED))
        before = n_tokens(running)
        heard = [pool.submit(ask, running, asked) for asked in ASKED * N_COPIES]
        for _ in range(N_KILLS):
            send(running, signal.SIGKILL)
        assert [each.result() for each in heard] == alone * N_COPIES
        assert n_tokens(running) >= before
        assert running.process.poll() is None
        wait_until(lambda: n_known(running) == 0)
        assert n_deaths(running) == N_KILLS


@pytest.mark.parametrize("when", POINTS)
def test_a_death_at_any_point_of_a_step_changes_no_byte(server: StartServer, when: str) -> None:
    """A fault of the native core: its streams pass the step one at a time, canaries too. Of the
    kinds of requests every second one meets it at each point."""
    freed = FREED[POINTS.index(when) % 2 :: 2]
    faults = {**SLOW, "at": 230, "what": "segfault", "when": when}  # they have sung alone by then
    with server(faults=faults, executor="native") as running, ThreadPoolExecutor(32) as pool:
        with canaries(running):
            heard = list(pool.map(lambda asked: ask(running, asked), freed))
            wait_until(lambda: n_deaths(running) == 1)
        assert heard == list(pool.map(lambda asked: ask(running, asked), freed))
        (said,) = [line for line in running.lines if "SIGSEGV" in line]
        assert "a thread was in " in said  # any of them takes the signal, and the others go on
        assert n_deaths(running) == 1


def test_what_an_executor_raises_is_a_death_like_any_other(server: StartServer) -> None:
    faults = {**SLOW, "at": 60, "what": "raise"}
    with server(faults=faults, executor="native") as running:
        heard = ask(running, ASKED[0])
        wait_until(lambda: n_deaths(running) == 1)
        assert heard == ask(running, ASKED[0])
        assert any("injected" in line for line in running.lines)


@pytest.mark.parametrize("what", ["stop", "sleep"])
def test_an_engine_that_hangs_is_replaced(server: StartServer, what: str) -> None:
    faults = {**SLOW, "at": 60, "what": what}
    with server(faults=faults, executor="native") as running, ThreadPoolExecutor(32) as pool:
        asked = ASKED[what == "stop" :: 2]
        heard = list(pool.map(lambda each: ask(running, each), asked))
        wait_until(lambda: n_deaths(running) == 1)
        assert heard == list(pool.map(lambda each: ask(running, each), asked))
        (said,) = [line for line in running.lines if "did not go on for" in line]
        assert ("stopped by a signal" in said) == (what == "stop")
        assert ("a thread was in _strike (e2e/fault_engine.py:" in said) == (what == "sleep")


def test_an_engine_that_was_stopped_while_idle_is_replaced_when_it_is_needed(
    server: StartServer,
) -> None:
    with server(faults=SLOW) as running:
        heard = ask(running, ASKED[0])
        os.kill(running.engine_pid(), signal.SIGSTOP)
        assert ask(running, ASKED[0]) == heard
        assert n_deaths(running) == 1


def test_an_engine_that_is_stopped_while_it_starts_is_replaced(server: StartServer) -> None:
    """Long before the time is up that a start may take."""
    with server(faults={**SLOW, "start": 2}) as running, ThreadPoolExecutor(1) as pool:
        alone = ask(running, ASKED[0])
        began = time.monotonic()
        os.kill(running.engine_pid(), signal.SIGKILL)
        heard = pool.submit(ask, running, ASKED[0])
        wait_until(lambda: running.metric("kvasir_engine_restarts_total") == 1)
        os.kill(running.engine_pid(), signal.SIGSTOP)
        assert heard.result() == alone
        assert time.monotonic() - began < MIN_START_SECONDS
        assert any("stopped by a signal while it started" in line for line in running.lines)


def test_a_busy_engine_is_left_alone(server: StartServer) -> None:
    """Steps of more than the least limit, which the engine has learned to expect."""
    with server(faults={"seconds": 0.4}) as running, ThreadPoolExecutor(2) as pool:
        song = ("/v1/completions", {**FREE, "max_tokens": 20, "temperature": 0})
        os.kill(running.process.pid, signal.SIGSTOP)
        time.sleep(0.5)
        os.kill(running.process.pid, signal.SIGCONT)
        heard = [pool.submit(ask, running, song) for _ in range(2)]
        wait_until(lambda: n_known(running) == 2)
        os.kill(running.process.pid, signal.SIGSTOP)
        time.sleep(
            6
        )  # the server is stopped for longer than the limit, and the engine waits for it
        os.kill(running.process.pid, signal.SIGCONT)
        assert heard[0].result() == heard[1].result()
        assert n_deaths(running) == 0


POISON = {"prompt": "poison", "seed": 666, "max_tokens": 100, "ignore_eos": True}


@pytest.mark.parametrize("what", ["segfault", "sleep"])
def test_a_poison_ends_two_engines_and_itself(server: StartServer, what: str) -> None:
    faults = {**SLOW, "poison": 666, "output": 30, "what": what, "times": 0}
    song = {**FREE, "max_tokens": 200, "stream": True}
    songs = [("/v1/completions", {**song, "seed": seed}) for seed in range(12)]
    with server(faults=faults, executor="native") as running, ThreadPoolExecutor(32) as pool:
        heard = [pool.submit(ask, running, song) for song in songs]
        wait_until(lambda: n_known(running) >= 6)
        answer = running.post("/v1/completions", POISON)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_fault")
        told = [each.result() for each in heard]
        assert n_deaths(running) == 2
        for _ in range(20):
            again = running.post("/v1/completions", {**POISON, "seed": 667})
            assert again.json()["error"]["code"] == "engine_fault"
            assert "it is refused for" in again.json()["error"]["message"]
        other = running.post("/v1/completions", {**POISON, "seed": 667, "user": "another"})
        assert other.status_code == 200
        assert told == list(pool.map(lambda song: ask(running, song), songs))
        assert n_deaths(running) == 2


def test_a_poisoned_prompt_ends_before_its_first_token(server: StartServer) -> None:
    faults = {**SLOW, "poison": 666, "what": "segfault", "times": 0}
    with server(faults=faults) as running:
        answer = running.post("/v1/completions", POISON)
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_fault")
        assert n_deaths(running) == 2
        assert ask(running, ASKED[0])


def test_a_poison_in_the_middle_of_a_stream_is_told_there(server: StartServer) -> None:
    faults = {**SLOW, "poison": 666, "output": 30, "what": "segfault", "times": 0}
    with server(faults=faults) as running:
        event = last_event(running, POISON)
        assert json.loads(event.removeprefix("data: "))["error"]["code"] == "engine_fault"


def test_five_deaths_without_progress_end_the_server(server: StartServer) -> None:
    faults = {"at": 0, "what": "segfault", "times": 0}
    with server(faults=faults) as running:
        codes = [
            running.post("/v1/completions", {**FREE, "prompt": [i]}).json()["error"]["code"]
            for i in range(2)
        ]
        assert codes == ["engine_fault"] * 2
        error = running.post("/v1/completions", {**FREE, "prompt": "third"}).json()["error"]
        assert error["code"] == "engine_down"
        assert running.process.wait(PATIENCE) == 1
        wait_until(lambda: any("5 deaths without progress" in line for line in running.lines))


def test_an_engine_that_does_not_start_again_ends_the_server(server: StartServer) -> None:
    with server(faults={**SLOW, "broken_start": 9}) as running:
        os.kill(running.engine_pid(), signal.SIGKILL)
        assert running.process.wait(PATIENCE) == 1
        wait_until(lambda: any("5 deaths without progress" in line for line in running.lines))


def test_a_failed_start_is_tried_again(server: StartServer) -> None:
    with server(faults={**SLOW, "broken_start": 2}) as running, ThreadPoolExecutor(1) as pool:
        heard = pool.submit(ask, running, LASTING)
        wait_until(lambda: n_known(running) == 1)
        os.kill(running.engine_pid(), signal.SIGKILL)
        assert heard.result() == ask(running, LASTING)


def test_requests_that_come_while_there_is_no_engine_wait(server: StartServer) -> None:
    with server(faults={**SLOW, "start": 2}) as running, ThreadPoolExecutor(9) as pool:
        alone = ask(running, ASKED[0])
        os.kill(running.engine_pid(), signal.SIGKILL)
        wait_until(lambda: not is_ready(running))
        # First its connection is gone, then how it ended is known.
        assert running.get("/ready").json()["status"].startswith("engine restarts: ")
        assert running.get("/live").status_code == 200
        heard = [pool.submit(ask, running, ASKED[0]) for _ in range(9)]
        assert running.get("/ready").status_code == 503
        assert [each.result() for each in heard] == [alone] * 9


def test_logits_that_are_not_finite_end_one_request_also_in_a_replay(
    server: StartServer,
) -> None:
    faults = {**SLOW, "nonfinite": {"5": 60}, "at": 40, "what": "segfault"}
    with server(faults=faults) as running, ThreadPoolExecutor(2) as pool:
        sick = pool.submit(last_event, running, {**FREE, "seed": 5})
        well = pool.submit(ask, running, ASKED[1])
        error = json.loads(sick.result().removeprefix("data: "))["error"]
        assert error["code"] == "model_numerics"
        assert well.result() == ask(running, ASKED[1])
        assert n_deaths(running) == 1


def test_a_drain_waits_for_a_replay(server: StartServer) -> None:
    with server(faults=SLOW) as running, ThreadPoolExecutor(4) as pool:
        alone = ask(running, LASTING)
        heard = [pool.submit(ask, running, LASTING) for _ in range(4)]
        wait_until(lambda: n_known(running) == 4)
        os.kill(running.engine_pid(), signal.SIGKILL)
        running.process.send_signal(signal.SIGTERM)
        assert [each.result() for each in heard] == [alone] * 4
        assert running.process.wait(PATIENCE) == 0


def test_a_client_that_leaves_while_there_is_no_engine_is_not_replayed(
    server: StartServer,
) -> None:
    with server(faults={**SLOW, "start": 1}) as running:
        with connect(running) as sock:
            body = {"model": running.model, "stream": True, **FREE, "max_tokens": 3000}
            sock.sendall(post_bytes("/v1/completions", json.dumps(body).encode()))
            wait_until(lambda: n_known(running) == 1)
            os.kill(running.engine_pid(), signal.SIGKILL)
            wait_until(lambda: not is_ready(running))
        wait_until(lambda: is_ready(running))
        assert running.get("/v1/timeline?steps=9").json()["steps"][-1:] != []
        wait_until(lambda: n_known(running) == 0)


def swap(server: Server, **changes: object) -> httpx.Response:
    found = [re.search(r"admin routes at (\S+)", line) for line in server.lines]
    admin = next(match[1] for match in found if match)
    url = admin + "/engine/swap"
    key = {"Authorization": "Bearer operator"}
    return httpx.post(url, json=changes, headers=key, timeout=PATIENCE, trust_env=False)


def test_an_engine_is_swapped_under_its_streams(server: StartServer) -> None:
    with (
        server(faults=SLOW, executor="native", admin_port=0, admin_key="operator") as running,
        ThreadPoolExecutor(32) as pool,
    ):
        alone = list(pool.map(lambda asked: ask(running, asked), ASKED))
        for changes in ({"threads": 1}, {"max_num_seqs": 16, "kv_memory": "32MiB"}):
            heard = [pool.submit(ask, running, asked) for asked in ASKED]
            told, engine = n_tokens(running), running.engine_pid()
            wait_until(lambda told=told: n_tokens(running) > told + 200)
            answer = swap(running, **changes)
            assert (answer.status_code, answer.json()["status"]) == (200, "swapped")
            assert [each.result() for each in heard] == alone
            wait_until(lambda engine=engine: not is_alive(engine))
        assert answer.json()["max_num_seqs"] == 16
        assert n_deaths(running) == 0
        send_later = pool.submit(ask, running, ASKED[0])
        os.kill(running.engine_pid(), signal.SIGKILL)
        assert send_later.result() == alone[0]


def test_an_engine_that_would_answer_otherwise_is_not_taken(server: StartServer) -> None:
    with server(faults=SLOW, executor="native", admin_port=0, admin_key="operator") as running:
        engine = running.engine_pid()
        for status, changes in (
            (409, {"block_size": 32}),
            (409, {"max_model_len": 64}),
            (400, {"threads": -1}),
            (400, {"thread": 1}),
            (400, {"model": "other"}),
            (503, {"kv_memory": "1EiB"}),
        ):
            answer = swap(running, **changes)
            assert answer.status_code == status, answer.text
        assert running.engine_pid() == engine
        assert ask(running, ASKED[0])
