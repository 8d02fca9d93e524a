"""Those who hold connections and bodies open keep nobody else out."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import pytest

from tests import tiny
from tests.e2e.canaries import JUDGES_TIMES, watching
from tests.e2e.conftest import StartServer
from tests.e2e.harness import (
    AT_ONCE,
    PATIENCE,
    Reply,
    Server,
    connect,
    exchange,
    head,
    post_bytes,
    post_head,
    read_reply,
    running_server,
    step_back,
    wait_until,
)

PATH = "/v1/completions"
NOWHERE = "/v1/none"
LARGE = 15 * 10**6
MIB = 2**20
Attack = Callable[[Server], None]


def code_of(reply: Reply | None) -> tuple[int, str]:
    assert reply is not None
    return reply.status, str(reply.json()["error"]["code"])


def first(server: Server, data: bytes, status: int) -> Reply:
    """Asks until it is answered so: what came before has been read by then."""
    found: list[Reply | None] = []

    def is_answered() -> bool:
        found.append(exchange(server, data))
        return found[-1] is not None and found[-1].status == status

    wait_until(is_answered)
    assert found[-1] is not None
    return found[-1]


@contextmanager
def trickling(server: Server, requests: list[bytes], rate: int = 1400) -> Iterator[None]:
    """Connections that sent ``requests`` and go on with ``rate`` bytes a second, deaf to answers;
    who is cut off comes back."""
    stop, begun = threading.Event(), threading.Semaphore(0)

    def trickle(start: bytes) -> None:
        while not stop.is_set():
            with suppress(OSError), connect(server) as sock:
                sock.sendall(start)
                begun.release()
                while not stop.wait(0.1):
                    sock.sendall(b" " * (rate // 10))

    with ThreadPoolExecutor(len(requests), initializer=step_back) as pool:
        for request in requests:
            pool.submit(trickle, request)
        try:
            for _ in requests:
                assert begun.acquire(timeout=PATIENCE)
            yield
        finally:
            stop.set()


def test_the_body_of_a_refused_request_is_not_awaited(server: StartServer) -> None:
    """The answer says that the connection ends, and can be read by a client that still sends."""
    with server(api_key="secret") as running, connect(running) as sock:
        sock.sendall(post_head(PATH, LARGE))
        reply = read_reply(sock)
        assert code_of(reply) == (401, "invalid_api_key")
        assert reply is not None and reply.headers["connection"] == "close"
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() < began + AT_ONCE:
                sock.sendall(b" " * 140)
                time.sleep(0.1)
        assert time.monotonic() - began < AT_ONCE

    with server(api_key="secret") as running, connect(running) as sock:
        sock.sendall(post_bytes(PATH, b" " * LARGE))  # more than buffers hold: a reset would raise
        assert code_of(read_reply(sock)) == (401, "invalid_api_key")


def test_a_refused_request_with_its_body_keeps_the_connection(server: StartServer) -> None:
    with server(api_key="secret") as running, connect(running) as sock:
        for _ in range(2):
            sock.sendall(post_bytes(PATH, b"{}"))
            assert code_of(read_reply(sock)) == (401, "invalid_api_key")


def test_who_ignores_a_401_takes_no_place(server: StartServer) -> None:
    options = {"max_connections": 20, "api_key": "secret"}
    with server(**options) as running, trickling(running, [post_head(PATH, LARGE)] * 20):
        for _ in range(20):
            assert running.get("/health").status_code == 200
            key = {"Authorization": "Bearer secret"}
            reply = running.post(PATH, {"prompt": "x", "max_tokens": 2}, **key)
            assert reply.status_code == 200


def test_health_answers_while_all_connections_are_taken(server: StartServer) -> None:
    """By bodies that arrive as fast as they must. The others learn why they have to wait."""
    with server(max_connections=20) as running:
        with trickling(running, [post_head(PATH, LARGE // 10)] * 20, rate=40_000):
            for path in ("/health", "/live", "/ready"):
                best = AT_ONCE
                for _ in range(10):
                    began = time.monotonic()
                    assert running.get(path).status_code == 200
                    best = min(best, time.monotonic() - began)
                assert best < 0.05 or not JUDGES_TIMES
            for data in (head("GET", "/version"), post_bytes(PATH, b"{}")):
                refused = first(running, data, 503)
                assert code_of(refused) == (503, "http_refused")
                assert refused.headers["retry-after"] == "1"
                assert "all 20 connections are taken" in refused.json()["error"]["message"]
            with ExitStack() as stack:  # silent ones do not fill the reserve
                for _ in range(100):
                    stack.enter_context(connect(running))
                assert running.get("/health").status_code == 200
        assert running.get("/version").status_code == 200


@pytest.mark.parametrize("sent", [b"", b" " * 900_000], ids=["nothing", "most of it"])
def test_a_body_that_rests_is_given_up(server: StartServer, sent: bytes) -> None:
    """However much of it came before."""
    with server(body_timeout=1, max_body_bytes=MIB) as running, connect(running) as sock:
        sock.sendall(post_head(PATH, MIB) + sent)
        began = time.monotonic()
        assert code_of(read_reply(sock)) == (408, "http_refused")
        assert time.monotonic() - began < AT_ONCE


def test_a_body_has_the_time_of_its_length(server: StartServer) -> None:
    """At half the floor rate it is over after twice the grace; at the floor rate it is read."""
    body = json.dumps({"model": "toy", "prompt": "x", "max_tokens": 1}).encode()
    body += b" " * (30_000 - len(body))
    with server(body_timeout=1, body_rate=10_000) as running:
        for rate, status in ((5_000, 408), (20_000, 200)):
            with connect(running) as sock:
                sock.sendall(post_head(PATH, len(body)))
                _send_slowly(sock, body, rate)
                reply = read_reply(sock)
            assert reply is not None and reply.status == status


def _send_slowly(sock: socket.socket, body: bytes, rate: int) -> None:
    """``rate`` bytes a second, until there is an answer."""
    sock.settimeout(0.1)
    for start in range(0, len(body), rate // 10):
        sock.sendall(body[start : start + rate // 10])
        with suppress(TimeoutError):
            if sock.recv(1, socket.MSG_PEEK):
                break
    sock.settimeout(AT_ONCE)


def test_bodies_share_one_budget(server: StartServer) -> None:
    """Small bodies are never in the way, nor kept out."""
    with server(max_body_bytes=MIB, max_body_memory=2 * MIB) as running, ExitStack() as stack:
        held = [stack.enter_context(connect(running)) for _ in range(2)]
        for sock in held:
            sock.sendall(post_head(PATH, MIB) + b" " * (MIB - 1))
        time.sleep(1)  # they are read; who asked meanwhile would take the room of one of them
        refused = exchange(running, post_bytes(PATH, b" " * 70_000))
        assert code_of(refused) == (503, "bodies_full")
        assert refused is not None and refused.headers["retry-after"] == "1"
        assert "--max-body-memory" in refused.json()["error"]["message"]
        chunk = b"%x\r\n" % 70_000 + b" " * 70_000 + b"\r\n"
        fields = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        assert code_of(exchange(running, head("POST", PATH, *fields) + chunk))[0] == 503
        assert running.post(PATH, {"prompt": "x", "max_tokens": 2}).status_code == 200
        held[0].close()
        first(running, post_bytes(PATH, b" " * 70_000), 400)


def test_what_is_announced_keeps_nobody_out(server: StartServer) -> None:
    """Eight bodies at the rate that they must have, which say that they will fill the budget."""
    with server() as running, trickling(running, [post_head(PATH, 16 * MIB)] * 8, rate=17_000):
        for _ in range(10):
            assert code_of(exchange(running, post_bytes(PATH, b" " * 70_000)))[0] == 400


def test_who_sends_for_longest_makes_room(server: StartServer) -> None:
    """The budget is full of what came fast, and goes on as slowly as it may."""
    options = {"max_body_bytes": MIB, "max_body_memory": 2 * MIB}
    with server(**options, body_timeout=2, body_rate=1) as running, ExitStack() as stack:
        held = [stack.enter_context(connect(running)) for _ in range(2)]
        for sock in held:
            sock.sendall(post_head(PATH, MIB) + b" " * (MIB - 1000))
        for _ in range(5):
            time.sleep(0.5)
            for sock in held:
                sock.sendall(b" ")
        assert code_of(exchange(running, post_bytes(PATH, b" " * 70_000)))[0] == 400
        for sock in held:
            sock.sendall(b" ")
        time.sleep(0.2)
        held[1].sendall(b" " * 994)
        assert code_of(read_reply(held[1]))[0] == 400, "the other goes on"
        reply = read_reply(held[0])
        assert code_of(reply) == (503, "bodies_full")
        assert reply is not None and "the memory of the 104" in reply.json()["error"]["message"]


def test_r14_requests_that_wait_behind_another_are_bounded(server: StartServer) -> None:
    stream = json.dumps({"model": "toy", "prompt": "x", "max_tokens": 400, "stream": True}).encode()
    with server(faults={"seconds": 0.05}) as running, connect(running) as sock:
        sock.sendall(post_bytes(PATH, stream) + head("GET", "/health") * 200)
        began = time.monotonic()
        while sock.recv(2**16):
            continue
        assert time.monotonic() - began < AT_ONCE
        running.wait_idle()


def deaf_to_refusals(server: Server) -> None:
    with trickling(server, [post_head(NOWHERE, LARGE)] * 20):
        time.sleep(2)


def many_large_bodies(server: Server) -> None:
    """360 MB of them; half are one text, the others only count much."""
    text = b'{"model": "tiny", "prompt": "' + b"a" * LARGE + b'"}'
    lists = b'{"model": "tiny", "prompt": "x", "junk": [' + b"[]," * (LARGE // 3) + b"0]}"

    def send(body: bytes) -> None:
        status = code_of(exchange(server, post_bytes(PATH, body)))[0]
        # a crowded machine leaves who stepped back no time to send
        assert status in (400, 503) or (status == 408 and not JUDGES_TIMES)

    with ThreadPoolExecutor(16, initializer=step_back) as pool:
        list(pool.map(send, [text, lists] * 12))


def tiny_chunks(server: Server) -> None:
    fields = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    data = head("POST", PATH, *fields) + b"1\r\n \r\n" * 10**5
    with ThreadPoolExecutor(20, initializer=step_back) as pool:
        for reply in pool.map(lambda _: exchange(server, data), range(100)):
            assert reply is None or reply.status == 413


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    model = tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("native") / "model")
    options = {"max_model_len": 512, "kv_memory": "4MiB", "threads": 1}
    with running_server(
        model, executor="cpu", name="tiny", engine=options, max_connections=64
    ) as server:
        yield server


@pytest.mark.parametrize("attack", [deaf_to_refusals, many_large_bodies, tiny_chunks])
def test_streams_do_not_notice(native: Server, attack: Attack) -> None:
    with watching(native) as watch:
        print(attack.__name__, watch.holds(attack))
