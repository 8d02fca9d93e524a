"""Ollama's empty prompts, which load and unload, and what its clients ask with HEAD."""

from __future__ import annotations

import threading
from typing import Any

import httpx
import pytest

from kvasir.serve.app import ROUTES
from tests.documented import Documented
from tests.e2e.conftest import StartServer
from tests.e2e.harness import MODEL, Server, sing, wait_until

SONG = {"prompt": "x", "max_tokens": 60, "ignore_eos": True, "seed": 3}
EMPTY: dict[str, dict[str, Any]] = {
    "/api/generate": {"response": ""},
    "/api/chat": {"message": {"role": "assistant", "content": ""}},
}


def ask(server: Server, path: str, **body: Any) -> httpx.Response:
    return server.http.post(server.url + path, json={"model": MODEL, **body})


@pytest.mark.parametrize("path", EMPTY)
@pytest.mark.parametrize("more", [{}, {"keep_alive": "5m"}, {"odd": 1}])
def test_an_empty_prompt_loads(toy: Server, path: str, more: dict[str, Any]) -> None:
    reply = ask(toy, path, stream=True, **more)
    assert reply.status_code == 200
    Documented().check("POST", path, reply)
    found = reply.json()
    assert found.pop("created_at")
    assert bool(found.pop("warnings", None)) == ("odd" in more)
    assert found == {"model": MODEL, **EMPTY[path], "done": True, "done_reason": "load"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"model": "no-such-model"}, 404),
        ({"model": None}, 400),
        ({"keep_alive": 0}, 400),  # the server keeps its models
        ({"keep_alive": "0s"}, 400),
        ({"keep_alive": "soon"}, 400),
        ({"shift": True}, 400),
        ({"stream": 7}, 400),
        (
            {"prompt": "a text", "messages": [{"role": "user", "content": "a"}], "keep_alive": 0},
            400,
        ),
    ],
)
@pytest.mark.parametrize("path", EMPTY)
def test_what_cannot_be_is_refused(
    toy: Server, path: str, body: dict[str, Any], status: int
) -> None:
    reply = ask(toy, path, **body)
    assert (reply.status_code, list(reply.json())) == (status, ["error"])


def test_an_engine_is_unloaded_and_loaded(server: StartServer) -> None:
    with server(faults={"seconds": 0.01}, sleep_idle_seconds=600) as ours:
        alone = sing(ours, SONG)
        heard: list[list[str]] = []
        singer = threading.Thread(target=lambda: heard.append(sing(ours, SONG)))
        singer.start()
        wait_until(lambda: ours.metric("kvasir_num_requests_running") > 0)
        assert ask(ours, "/api/generate", keep_alive=0).status_code == 409  # somebody uses it
        singer.join()
        assert heard == [alone]
        ours.wait_idle()
        for _ in range(2):
            assert ask(ours, "/api/generate", keep_alive=0).json()["done_reason"] == "unload"
            assert ours.metric("kvasir_engine_sleeping") == 1
        assert ask(ours, "/api/chat").json()["done_reason"] == "load"
        assert ours.metric("kvasir_engine_sleeping") == 0
        ask(ours, "/api/chat", keep_alive="0m")
        assert sing(ours, SONG) == alone  # a request loads it as well


def test_head_is_get_without_its_body(toy: Server) -> None:
    for path in ("/", "/api/version", "/api/tags", "/v1/models", "/health", "/openapi.json"):
        assert any(route.path == path for route in ROUTES)
        reply = toy.http.head(toy.url + path)
        assert (reply.status_code, reply.content) == (200, b""), path
        whole = toy.get(path)
        assert reply.headers["content-type"] == whole.headers["content-type"]
        assert (
            reply.headers["content-length"] == whole.headers["content-length"] or path == "/health"
        )
    assert toy.http.head(toy.url + "/v1/completions").status_code == 405
    assert toy.get("/ready").status_code == 200  # the connections are whole
