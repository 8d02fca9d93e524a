"""R01 to R12 of the robustness list: bytes that are not a proper request hurt nobody but their
sender."""

from __future__ import annotations

import gzip
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.e2e.canaries import JUDGES_TIMES
from tests.e2e.conftest import StartServer
from tests.e2e.harness import (
    AT_ONCE,
    MODEL,
    PATIENCE,
    Reply,
    Server,
    canaries,
    connect,
    exchange,
    head,
    n_open_files,
    post_bytes,
    post_head,
    read_reply,
    wait_until,
)

PATH = "/v1/completions"
LIMIT = 2**20
GOOD = {"model": MODEL, "prompt": "x", "max_tokens": 2, "seed": 1}


@pytest.fixture(params=["toy", "native_toy"])
def calm(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server, with canaries singing during the test; on the fake and on the native executor."""
    server: Server = request.getfixturevalue(request.param)
    with canaries(server):
        yield server


def refused(reply: Reply | None, *statuses: int) -> dict[str, str]:
    """The error object of a JSON error response with one of ``statuses``."""
    assert reply is not None
    assert reply.status in statuses, reply
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return dict(error)


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    ("body", "offset"),
    [
        (b'{"model": toy}', 10),
        (b'{"model": "toy", }', 17),
        (b'{"a": 1} x', 9),
        (b'{"a": [1, 2', 11),
        (b"\xff", 0),
    ],
)
def test_r01_malformed_json(toy: Server, body: bytes, offset: int) -> None:
    error = refused(exchange(toy, post_bytes(PATH, body)), 400)
    assert error["type"] == "invalid_request_error"
    assert f"byte {offset}" in error["message"]


def test_r02_empty_body_or_wrong_type(toy: Server) -> None:
    refused(exchange(toy, post_bytes(PATH, b"")), 400)
    body = json.dumps(GOOD).encode()
    for media in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ):
        request = (
            head("POST", PATH, f"Content-Type: {media}", f"Content-Length: {len(body)}") + body
        )
        refused(exchange(toy, request), 415)
    untyped = head("POST", PATH, f"Content-Length: {len(body)}") + body
    refused(exchange(toy, untyped), 415)


def test_r03_truncated_body_times_out(calm: Server) -> None:
    started = time.monotonic()
    refused(exchange(calm, post_head(PATH, 1000) + b'{"model"'), 400, 408)
    assert time.monotonic() - started < AT_ONCE


def test_r03_truncated_body_and_close(calm: Server) -> None:
    with connect(calm) as sock:
        sock.sendall(post_head(PATH, 1000) + b'{"model"')
        sock.shutdown(socket.SHUT_WR)
        assert read_reply(sock) is None


def test_r04_slow_headers(calm: Server) -> None:
    with connect(calm) as sock:
        started = time.monotonic()
        while time.monotonic() - started < PATIENCE:
            try:
                sock.sendall(b"G" if time.monotonic() == started else b"E")
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.1)
        assert time.monotonic() - started < AT_ONCE
        assert calm.get("/health").status_code == 200


def test_r04_slow_header_gets_408(calm: Server) -> None:
    refused(exchange(calm, b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"), 408)


def test_r04_slow_body(calm: Server) -> None:
    with connect(calm) as sock:
        sock.sendall(post_head(PATH, 100_000))
        started = time.monotonic()
        sock.settimeout(0.1)
        reply = b""
        while time.monotonic() - started < AT_ONCE and not reply:
            sock.sendall(b" ")
            try:
                reply = sock.recv(100)
            except TimeoutError:
                continue
        assert reply.startswith(b"HTTP/1.1 408")


def test_r04_silent_connection_is_closed(toy: Server) -> None:
    with connect(toy, timeout=AT_ONCE) as sock:
        assert is_closed(sock)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head("GET", "/health", "X: " + "a" * 2**20), 431),
        (head("GET", "/health", *(f"X{i}: a" for i in range(10_000))), 431),
        (head("GET", "/" + "a" * 2**20), 414),
        (b"GET /" + b"a" * 2**20, 414),
        (b"A" * 2**20, 400),
    ],
    ids=["1 MB header", "10,000 headers", "1 MB path", "endless path", "endless method"],
)
def test_r05_oversized_head(calm: Server, data: bytes, status: int) -> None:
    refused(exchange(calm, data), status)


def test_r06_declared_10_gb(calm: Server) -> None:
    refused(exchange(calm, post_head(PATH, 10 * 2**30) + b"{" * 1000), 413)


def test_r06_endless_chunks(calm: Server) -> None:
    before = calm.rss()
    chunk = b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"
    with connect(calm) as sock:
        sock.sendall(
            head("POST", PATH, "Content-Type: application/json", "Transfer-Encoding: chunked")
        )
        sent = 0
        try:
            while sent < 64 * 2**20:
                sock.sendall(chunk)
                sent += len(chunk)
        except (BrokenPipeError, ConnectionResetError):
            pass
    wait_until(lambda: calm.rss() - before < 16 * 2**20)


def test_r06_chunked_body_over_limit_gets_413(calm: Server) -> None:
    chunk = b"%x\r\n" % 65536 + b" " * 65536 + b"\r\n"
    with connect(calm) as sock:
        sock.sendall(
            head("POST", PATH, "Content-Type: application/json", "Transfer-Encoding: chunked")
        )
        for _ in range(LIMIT // 65536 + 1):
            sock.sendall(chunk)
        refused(read_reply(sock), 413)
        assert is_closed(sock)


def test_r06_body_at_the_limit(toy: Server) -> None:
    body = json.dumps(GOOD).encode()
    assert exchange(toy, post_bytes(PATH, body + b" " * (LIMIT - len(body)))).status == 200
    refused(exchange(toy, post_bytes(PATH, body + b" " * (LIMIT - len(body) + 1))), 413)


@pytest.mark.parametrize(("size", "status"), [(300, 200), (300_000, 413)])
def test_r07_tiny_chunks(calm: Server, size: int, status: int) -> None:
    """Each costs a turn of the parser: some are read, then larger ones are asked for."""
    body = json.dumps(GOOD).encode()
    body += b" " * (size - len(body))
    chunks = b"".join(b"1\r\n" + body[i : i + 1] + b"\r\n" for i in range(len(body)))
    start = head("POST", PATH, "Content-Type: application/json", "Transfer-Encoding: chunked")
    reply = exchange(calm, start + chunks + b"0\r\n\r\n")
    assert reply is not None
    assert reply.status == status


def test_r07_endless_framing(calm: Server) -> None:
    """Bytes that belong to no body: an extension of a chunk, and a trailer."""
    start = head("POST", PATH, "Content-Type: application/json", "Transfer-Encoding: chunked")
    for framing in (b"1;" + b"x" * 2**20, b"1\r\n{\r\n0\r\nX: " + b"y" * 2**20):
        refused(exchange(calm, start + framing), 413)


def test_r08_compressed_body(calm: Server) -> None:
    bomb = gzip.compress(b" " * 2**24)
    refused(exchange(calm, post_bytes(PATH, bomb, "Content-Encoding: gzip")), 415)


@pytest.mark.parametrize(
    "data",
    [
        head("POST", PATH, "Content-Length: 4", "Transfer-Encoding: chunked") + b"0\r\n\r\n",
        head("POST", PATH, "Transfer-Encoding: chunked", "Content-Length: 4") + b"0\r\n\r\n",
        head("POST", PATH, "Content-Length: 4", "Content-Length: 5") + b"abcde",
        head("POST", PATH, "Content-Length: 4", "Content-Length: 4") + b"abcd",
        head("POST", PATH, "Content-Length: +4") + b"abcd",
        head("POST", PATH, "Content-Length: 4, 4") + b"abcd",
        head("POST", PATH, "Content-Length: -1") + b"",
        head("POST", PATH, "Transfer-Encoding: xchunked") + b"0\r\n\r\n",
        head("POST", PATH, "Transfer-Encoding: chunked, identity") + b"0\r\n\r\n",
        head("POST", PATH, "Transfer-Encoding: chunked", "Transfer-Encoding: identity")
        + b"0\r\n\r\n",
        head("POST", PATH, "Transfer-Encoding : chunked") + b"0\r\n\r\n",
        head("GET", "//v1/models"),
        head("GET", "/v1//models"),
        head("GET", "/v1/../metrics"),
        head("GET", "/v1/./models"),
        head("GET", "/v1/%2e%2e/metrics"),
        head("GET", "/v1/%2E%2E/metrics"),
        head("GET", "/v1%2fmodels"),
        head("GET", "/v1\\models"),
        head("GET", "/v1/models/..%2f..%2fmetrics"),
        head("GET", "http://localhost/v1/models"),
        head("GET", "http://evil.example/health"),
        head("GET", "/health", host=None),
        head("GET", "/health", "Host: other"),
        head("GET", "/health", host="a b"),
        head("GET", "/health", host="localhost/v1/models"),
        head("GET", "/health", host="user@localhost"),
        head("GET", "/health", host="localhost:99999999"),
        head("GET", "/health", host=""),
        head("OPTIONS", "*"),
        head("CONNECT", "localhost:80"),
        head("GET", "/health", "Connection: Upgrade", "Upgrade: websocket"),
        head("GET", "/v1/mod\x00els"),
        head("GET", "/v1/models%00"),
        head("GET", "/v1/mod\xe9ls"),
        b"GET /health HTTP/1.1\r\nHost: a\r\n X: folded\r\n\r\n",
        b"GET /health HTTP/1.1\nHost: a\r\rX: y\n\n",
        b"GET /health\r\n\r\n",
    ],
)
def test_r09_two_readings_of_a_request(toy: Server, data: bytes) -> None:
    reply = exchange(toy, data)
    refused(reply, 400, 404)


def test_r09_nothing_runs_after_a_refusal(toy: Server) -> None:
    smuggled = head("GET", "/version")
    data = (
        head("POST", PATH, "Content-Length: 4", "Transfer-Encoding: chunked")
        + b"0\r\n\r\n"
        + smuggled
    )
    with connect(toy) as sock:
        sock.sendall(data)
        refused(read_reply(sock), 400)
        assert is_closed(sock)


def test_r10_unknown_route_and_method(toy: Server) -> None:
    assert refused(exchange(toy, head("GET", "/v2/none")), 404)["code"] == "not_found"
    wrong = exchange(toy, head("GET", PATH))
    assert refused(wrong, 405)["code"] == "method_not_allowed"
    assert wrong is not None
    assert wrong.headers["allow"] == "POST"
    refused(exchange(toy, post_bytes("/health", b"{}")), 405)


@pytest.mark.parametrize(
    "field",
    [
        '"temperature": NaN',
        '"temperature": Infinity',
        '"temperature": -Infinity',
        '"temperature": 1e400',
        '"temperature": -1e400',
        '"max_tokens": 9223372036854775808',
        '"max_tokens": 99999999999999999999999999999999999999',
        '"seed": 18446744073709551616',
        '"seed": 1, "seed": 2',
        '"logit_bias": {"1": 1, "1": 2}',
        '"logit_bias": {"1": 1, "01": 2}',
        '"prompt": "\\ud800"',
        '"prompt": "\\udc00\\ud800"',
        '"user": "a\x00b"',
        '"max_tokens": 01',
        '"max_tokens": "5"',
        '"max_tokens": true',
        '"max_tokens": 1.5',
        "\"max_tokens\": '5'",
    ],
)
def test_r11_odd_json_values(toy: Server, field: str) -> None:
    model, prompt = '"model": "toy"', '"prompt": "x", ' if "prompt" not in field else ""
    body = f"{{{model}, {prompt}{field}}}".encode()
    refused(exchange(toy, post_bytes(PATH, body)), 400)


@pytest.mark.parametrize(
    "field", ['"seed": -0', '"temperature": -0', '"temperature": -0.0', '"prompt": "\\u0000"']
)
def test_r11_defined_values(toy: Server, field: str) -> None:
    prompt = '"prompt": "x", ' if "prompt" not in field else ""
    reply = exchange(
        toy, post_bytes(PATH, f'{{"model": "toy", "max_tokens": 1, {prompt}{field}}}'.encode())
    )
    assert reply is not None
    assert reply.status == 200


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"prompt":' * 100_000,
        b'{"prompt":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
    ids=["arrays", "objects", "closed"],
)
def test_r12_deep_json(calm: Server, body: bytes) -> None:
    refused(exchange(calm, post_bytes(PATH, body)), 400)


def test_stray_bytes_behind_a_request_do_not_end_its_stream(server: StartServer) -> None:
    body = {**GOOD, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with server(faults={"seconds": 0.005}, header_timeout=1) as running, connect(running) as sock:
        sock.sendall(post_bytes(PATH, json.dumps(body).encode()) + b"\r\n")
        reply = read_reply(sock)
        assert reply is not None
        assert reply.body.endswith(b"data: [DONE]\n\n")


def test_unread_body_behind_an_answer_is_bounded(server: StartServer) -> None:
    with server(api_key="secret", body_timeout=1) as running, connect(running) as sock:
        sock.sendall(post_head(PATH, 10_000) + b"{")
        refused(read_reply(sock), 401)
        assert is_closed(sock)


def test_r13_idle_connections(server: StartServer) -> None:
    """Far more connections than allowed: the longest idle are closed, health answers: at once, as
    ``make test-quiet`` judges."""
    with server(max_connections=100) as running, ExitStack() as stack, canaries(running):
        socks = [stack.enter_context(connect(running)) for _ in range(800)]
        best = AT_ONCE
        for _ in range(10):
            started = time.monotonic()
            assert running.get("/health").status_code == 200
            best = min(best, time.monotonic() - started)
        assert best < 0.05 or not JUDGES_TIMES
        assert is_closed(socks[0])
        assert n_open_files(running) < 300


def test_r14_keep_alive_after_errors_and_pipelining(toy: Server) -> None:
    good = json.dumps(GOOD).encode()
    with connect(toy) as sock:
        sock.sendall(
            post_bytes(PATH, b"{")
            + post_bytes(PATH, good)
            + head("GET", "/none")
            + head("GET", "/health")
        )
        with sock.makefile("rb") as stream:
            statuses = []
            for _ in range(4):
                statuses.append(int(stream.readline().split()[1]))
                length = 0
                while (row := stream.readline().strip().lower()) != b"":
                    length = (
                        int(row.split(b":")[1]) if row.startswith(b"content-length") else length
                    )
                stream.read(length)
    assert statuses == [400, 200, 404, 200]
