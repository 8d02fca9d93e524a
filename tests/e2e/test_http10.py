"""Clients older than HTTP/1.1 know no chunks: the connection ends what they are sent."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import MODEL, Server, connect, post_bytes

ASKED = {"model": MODEL, "prompt": "abc", "max_tokens": 12, "seed": 5, "ignore_eos": True}


def old(path: str, body: dict[str, Any], *headers: str, version: str = "1.0") -> bytes:
    data = post_bytes(path, json.dumps(body).encode(), *headers)
    return data.replace(b" HTTP/1.1\r\n", f" HTTP/{version}\r\n".encode(), 1)


def answered(server: Server, data: bytes) -> tuple[list[str], bytes]:
    """Head lines in lower case, and the body: all bytes until the server closes."""
    with connect(server) as sock:
        sock.sendall(data)
        with sock.makefile("rb") as stream:
            head, _, body = stream.read().partition(b"\r\n\r\n")
    return head.decode().lower().split("\r\n"), body


def texts(body: bytes) -> list[str]:
    events = body.decode().split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    return [choice["text"] for chunk in chunks for choice in chunk["choices"]]


@pytest.mark.parametrize("version", ["1.0", "0.9"])
@pytest.mark.parametrize("headers", [(), ("Connection: keep-alive",), ("Expect: 100-continue",)])
def test_a_stream_ends_with_the_connection(
    toy: Server, version: str, headers: tuple[str, ...]
) -> None:
    asked = {**ASKED, "stream": True}
    head, body = answered(toy, old("/v1/completions", asked, *headers, version=version))
    assert head[0].split()[1] == "200"
    assert "connection: close" in head
    assert not any(line.startswith(("transfer-encoding", "content-length")) for line in head)
    whole = toy.post("/v1/completions", ASKED).json()["choices"][0]["text"]
    assert "".join(texts(body)) == whole


def test_an_answer_of_known_length(toy: Server) -> None:
    head, body = answered(toy, old("/v1/completions", ASKED, "Connection: keep-alive"))
    assert f"content-length: {len(body)}" in head and "connection: close" in head
    assert json.loads(body)["usage"]["completion_tokens"] == 12
    head, body = answered(toy, old("/v1/completions", {**ASKED, "n": 0}))
    assert head[0].split()[1] == "400" and json.loads(body)["error"]["param"] == "n"


def test_an_error_in_a_stream(server: StartServer) -> None:
    """The request ends its engines in the middle: an event says so, and the connection ends."""
    with server(faults={"poison": 666, "output": 30, "what": "segfault", "times": 0}) as poisoned:
        asked = {**ASKED, "max_tokens": 400, "stream": True, "seed": 666}
        with connect(poisoned) as sock:
            sock.sendall(old("/v1/completions", asked))
            with sock.makefile("rb") as stream:
                assert stream.readline().split()[1] == b"200"
                rest = stream.read()
    assert b"engine_fault" in rest and b"chunked" not in rest
