"""R16 to R18 and R71: streams that are cut, read slowly, or fail on one side only."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import (
    AT_ONCE,
    MODEL,
    PATIENCE,
    Server,
    canaries,
    connect,
    post_bytes,
    sing,
    wait_until,
)

PATH = "/v1/completions"
LONG: dict[str, Any] = {
    "model": MODEL,
    "prompt": "x",
    "max_tokens": 4000,
    "ignore_eos": True,
    "seed": 1,
}


@pytest.fixture
def steady(server: StartServer) -> Iterator[Server]:
    """Steps of 5 ms: 4000 tokens last 20 s, so that a cancelled request is seen to end early."""
    with server(faults={"seconds": 0.005}) as running:
        yield running


def open_request(server: Server, body: dict[str, Any]) -> socket.socket:
    sock = connect(server)
    sock.sendall(post_bytes(PATH, json.dumps(body).encode()))
    return sock


def cancelled(server: Server) -> float:
    return server.metric("kvasir_requests_cancelled_total")


def errors(server: Server, code: str) -> float:
    return server.metric("kvasir_request_errors_total", code=code)


@pytest.mark.parametrize("stream", [False, True])
def test_r16_disconnect_mid_decode(steady: Server, stream: bool) -> None:
    with canaries(steady):
        with open_request(steady, {**LONG, "stream": stream, "n": 2}):
            # more than the two canaries
            wait_until(lambda: steady.metric("kvasir_num_requests_running") > 2)
        wait_until(lambda: cancelled(steady) == 1, AT_ONCE)
    assert steady.metric("kvasir_request_success_total", finished_reason="abort") == 1


def test_r16_disconnect_frees_within_a_step(steady: Server) -> None:
    with open_request(steady, LONG):
        wait_until(lambda: steady.metric("kvasir_kv_cache_usage_perc") > 0)
    wait_until(lambda: cancelled(steady) == 1, AT_ONCE)
    steps = steady.metric("kvasir_iterations_total")
    steady.wait_idle()
    assert steady.metric("kvasir_iterations_total") <= steps + 2


def test_r16_disconnect_mid_prefill(steady: Server) -> None:
    body = {**LONG, "prompt": [[97] * 4000] * 8, "max_tokens": 90}
    with canaries(steady):
        with open_request(steady, body):
            wait_until(lambda: steady.metric("kvasir_num_requests_waiting") > 2)
        wait_until(lambda: cancelled(steady) == 1, AT_ONCE)


def test_r16_disconnect_before_the_engine_knows(steady: Server) -> None:
    for _ in range(20):
        with open_request(steady, LONG):
            pass
    steady.wait_idle()


def test_r16_disconnect_after_the_last_token(steady: Server) -> None:
    with open_request(steady, {**LONG, "max_tokens": 1, "stream": True}) as sock:
        data = b""
        while b"[DONE]" not in data:
            data += sock.recv(65536)
    steady.wait_idle()
    assert cancelled(steady) == 0


def test_r17_slow_reader_is_cancelled(server: StartServer) -> None:
    """Nobody reads: kernel and server buffer a bounded part, then the request ends, and only it."""
    with server(stream_buffer=64, write_timeout=1) as running, canaries(running):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(PATIENCE)
        with sock:
            sock.connect(("127.0.0.1", running.port))
            body = {**LONG, "stream": True, "logprobs": 20, "n": 8, "max_tokens": 1000}
            sock.sendall(post_bytes(PATH, json.dumps(body).encode()))
            wait_until(lambda: running.metric("kvasir_num_requests_running") > 2)
            wait_until(lambda: running.metric("kvasir_num_requests_running") <= 2)
            wait_until(lambda: cancelled(running) + errors(running, "slow_reader") == 1)


def test_a_slow_reader_is_told_why(server: StartServer, tmp_path: Path) -> None:
    """It reads nothing until all is computed and for a second more, or until that is most of the
    time. A Unix socket has room for little of that."""
    path = str(tmp_path / "kvasir.sock")
    body = {**LONG, "stream": True, "logprobs": 20, "n": 2, "max_tokens": 400}
    transport = httpx.HTTPTransport(uds=path)
    client = httpx.Client(transport=transport, base_url="http://localhost", timeout=PATIENCE)
    with server(uds=path), client, socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(PATIENCE)
        sock.connect(path)
        sock.sendall(post_bytes(PATH, json.dumps(body).encode()))
        data = b""
        while b"\n\n" not in data:
            data += sock.recv(4096)
        name = json.loads(data.split(b"data: ", 2)[1].split(b"\n", 1)[0])["id"]

        def told() -> Any:
            return client.get(f"/v1/requests/{name}/why").json()["choices"]

        wait_until(lambda: {choice["state"] for choice in told()} == {"finished"})
        time.sleep(1.0)
        wait_until(lambda: any(choice["cause"] == "reader" for choice in told()))
        early = told()
        while b"[DONE]" not in data[-64:]:
            data += sock.recv(1 << 20)
        for choices in (early, told()):
            (slow,) = (x for x in choices if any(y["cause"] == "reader" for y in x["parts"]))
            late = next(x["seconds"] for x in slow["parts"] if x["cause"] == "reader")
            assert slow["cause"] == "reader" and 0.9 <= late < slow["seconds"]


def events(server: Server, path: str, body: dict[str, Any]) -> list[str]:
    """The events of a stream, checked for their framing: UTF-8, one data line each, one [DONE] at
    the end."""
    with server.http.stream(
        "POST", server.url + path, json={"model": MODEL, "stream": True, **body}
    ) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        raw = b"".join(response.iter_bytes())
    assert raw.endswith(b"\n\n")
    found = raw[:-2].split(b"\n\n")
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in found)
    return [event.removeprefix(b"data: ").decode("utf-8") for event in found]


def test_r18_framing_and_characters(toy: Server) -> None:
    """Byte tokens draw characters in pieces: none is split, and the text equals that of the whole
    answer."""
    bias = {str(byte): 4 for byte in "😀漢é\n".encode()}
    body = {"prompt": "x", "max_tokens": 400, "seed": 5, "logit_bias": bias, "ignore_eos": True}
    lines = events(toy, PATH, body)
    assert lines.count("[DONE]") == 1
    assert lines[-1] == "[DONE]"
    texts = [json.loads(line)["choices"][0]["text"] for line in lines[:-1]]
    whole = toy.post(PATH, body).json()["choices"][0]["text"]
    assert "".join(texts) == whole
    assert any(len(text.encode()) > 1 and "\ufffd" not in text for text in texts)


def test_r18_half_a_character(toy: Server) -> None:
    """Three first bytes of four-byte characters can become none: each is told once, none is
    lost."""
    forced = {"prompt": "x", "logit_bias": {str("😀".encode()[0]): 100}, "max_tokens": 3}
    texts = [json.loads(line)["choices"][0]["text"] for line in events(toy, PATH, forced)[:-1]]
    assert "".join(texts) == "\ufffd" * 3


@pytest.mark.parametrize("stream", [False, True])
def test_r71_nan_logits_fail_one_request(server: StartServer, stream: bool) -> None:
    with server(faults={"nonfinite": {"99": 5}, "seconds": 0.001}) as running, canaries(running):
        before = errors(running, "model_numerics")
        body = {"prompt": "x", "seed": 99, "max_tokens": 9, "ignore_eos": True}
        if stream:
            lines = events(running, PATH, body)
            assert "[DONE]" not in lines
            assert len(lines) > 1
            error = json.loads(lines[-1])["error"]
        else:
            response = running.post(PATH, body)
            assert response.status_code == 500
            error = response.json()["error"]
        assert error["code"] == "model_numerics"
        assert errors(running, "model_numerics") == before + 1


def test_r71_the_client_sees_the_error(server: StartServer) -> None:
    with (
        server(faults={"nonfinite": {"99": 5}}) as running,
        openai.OpenAI(base_url=running.url + "/v1", api_key="x", max_retries=0) as client,
    ):
        stream = client.completions.create(
            model=MODEL, prompt="x", seed=99, stream=True, extra_body={"ignore_eos": True}
        )
        with pytest.raises(openai.APIError, match="not finite"):
            list(stream)


def test_r73_nothing_left_to_draw(toy: Server) -> None:
    """Bans that leave one token are obeyed; what can never be drawn is not token 0."""
    bias = {str(i): -100 for i in range(256) if i != 65}
    answer = toy.post(
        PATH, {"prompt": "x", "logit_bias": bias, "max_tokens": 4, "temperature": 0}
    ).json()
    assert answer["choices"][0]["text"] == "AAAA"


def test_too_many_requests(server: StartServer) -> None:
    with server(faults={"seconds": 0.005}, max_requests=2) as running:
        with open_request(running, LONG), open_request(running, LONG):
            wait_until(lambda: running.metric("kvasir_num_requests_running") == 2)
            response = running.post(PATH, {"prompt": "x"})
            assert response.status_code == 429
            assert int(response.headers["retry-after"]) >= 1
            assert running.get("/health").status_code == 200
        wait_until(lambda: cancelled(running) == 2, AT_ONCE)
        assert sing(running, {"prompt": "x", "max_tokens": 2, "ignore_eos": True})[1] == "length"


def test_who_asks_for_it_hears_of_silence_sooner(server: StartServer) -> None:
    """Of one that is stored, too, and of llama-server's."""
    talk = [{"role": "user", "content": "x"}]
    every = {"stream": True, "seed": 1, "ignore_eos": True}
    asked: dict[str, dict[str, Any]] = {
        PATH: {"prompt": "x", "max_tokens": 2},
        "/completion": {"prompt": "x", "n_predict": 2},
        "/v1/chat/completions": {"messages": talk, "max_tokens": 2, "store": True},
    }
    with server(faults={"seconds": 1.5}) as running:
        for path, body in asked.items():
            for interval in (1, None):
                more = {} if interval is None else {"sse_ping_interval": interval}
                reply = running.post(path, {**every, **body, **more})
                lines = reply.text.splitlines()
                assert any(line.startswith(":") for line in lines) is (interval == 1), path
