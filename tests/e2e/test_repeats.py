"""Idempotency-Key: who sends a request again is answered with the same bytes."""

from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.conftest import StartServer
from tests.e2e.harness import MODEL, Server, wait_until
from tests.e2e.test_keys import bearer, keyed, make
from tests.e2e.toy_model import write_toy_model

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED: dict[str, Any] = {"prompt": "again", "max_tokens": 20, "ignore_eos": True}
"""Without a seed: who computes it twice answers otherwise."""


def ask(server: Server, key: str, path: str = TEXT, **more: Any) -> httpx.Response:
    return server.post(path, {**ASKED, **more}, **{"Idempotency-Key": key})


def is_repeated(reply: httpx.Response) -> bool:
    return "idempotent-replayed" in reply.headers


@pytest.mark.parametrize("more", [{}, {"stream": True}, {"n": 3, "logprobs": 2}])
def test_the_same_request_has_the_same_answer(toy: Server, more: dict[str, Any]) -> None:
    first = ask(toy, f"same-{more}", **more)
    again = ask(toy, f"same-{more}", **more)
    assert first.status_code == again.status_code == 200
    assert first.content == again.content
    assert (is_repeated(first), is_repeated(again)) == (False, True)
    assert first.headers["content-type"] == again.headers["content-type"]
    assert ask(toy, f"other-{more}", **more).content != first.content


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/responses", {"input": "again", "max_output_tokens": 5}),
        (CHAT, {"messages": [{"role": "user", "content": "again"}], "max_tokens": 5}),
    ],
)
def test_who_deletes_an_answer_deletes_it_here_too(
    toy: Server, path: str, body: dict[str, Any], stream: bool
) -> None:
    key = {"Idempotency-Key": f"deleted-{path}-{stream}"}
    asked = {**body, "store": True, "stream": stream}
    first = toy.post(path, asked, **key)
    assert is_repeated(toy.post(path, asked, **key))
    (name,) = set(re.findall(r'"id":"((?:resp_|chatcmpl-)[0-9a-f]+)"', first.text))
    assert toy.http.delete(f"{toy.url}{path}/{name}").status_code == 200
    again = toy.post(path, asked, **key)
    assert again.status_code == 200 and not is_repeated(again) and name not in again.text


def test_another_request_needs_another_key(toy: Server) -> None:
    assert ask(toy, "one").status_code == 200
    for path, more in ((TEXT, {"max_tokens": 21}), (CHAT, {})):
        reply = ask(toy, "one", path, **more)
        assert reply.status_code == 422
        assert reply.json()["error"]["code"] == "idempotency_key_reused"


def test_errors_are_not_kept(toy: Server) -> None:
    assert ask(toy, "error", temperature=-1).status_code == 400
    assert ask(toy, "error").status_code == 200


@pytest.mark.parametrize("key", ["", "k" * 256, "é"])
def test_bad_keys(toy: Server, key: str) -> None:
    headers = {"Idempotency-Key": key.encode()}
    reply = toy.http.post(toy.url + TEXT, json={"model": "toy", **ASKED}, headers=headers)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "Idempotency-Key"


def test_who_asks_meanwhile_waits(server: StartServer) -> None:
    with server(faults={"seconds": 0.01}) as running, ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(ask, running, "meanwhile", max_tokens=100) for _ in range(4)]
        bodies = {reply.result().content for reply in replies}
        assert len(bodies) == 1
        assert sum(is_repeated(reply.result()) for reply in replies) == 3


def test_an_answer_that_nobody_heard_is_computed_for_the_next(server: StartServer) -> None:
    with server(faults={"seconds": 0.01}) as running:
        gone = {"Idempotency-Key": "gone"}
        body = {"model": "toy", **ASKED, "stream": True, "max_tokens": 3000}
        with running.http.stream("POST", running.url + TEXT, json=body, headers=gone) as stream:
            lines = stream.iter_lines()
            next(lines)
            waiting: list[httpx.Response] = []
            other = threading.Thread(
                target=lambda: waiting.append(running.post(TEXT, {**body, "max_tokens": 3}, **gone))
            )
            other.start()
            other.join()
            assert waiting[0].status_code == 422
        wait_until(lambda: running.metric("kvasir_num_requests_running") == 0)
        assert ask(running, "gone").status_code == 200


def test_who_waits_and_leaves_holds_nothing(toy_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    alice = make(path, "alice", concurrency=3)
    named = {**bearer(alice), "Idempotency-Key": "k"}
    body = {"model": MODEL, **ASKED, "stream": True, "max_tokens": 3000, "ignore_eos": True}
    slow = write_toy_model(tmp_path / "slow", {"seconds": 0.01})
    with (
        keyed(slow, path) as server,
        server.http.stream("POST", server.url + TEXT, json=body, headers=named) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        for _ in range(2):
            with pytest.raises(httpx.ReadTimeout):
                server.http.post(server.url + TEXT, json=body, headers=named, timeout=0.5)
        wait_until(lambda: server.post(TEXT, ASKED, **bearer(alice)).status_code == 200)


def test_it_holds_over_a_kill_and_for_one_key_alone(toy_folder: Path, tmp_path: Path) -> None:
    path, state = tmp_path / "keys", str(tmp_path / "state")
    alice, bob = make(path, "alice"), make(path, "bob")

    def ask_as(server: Server, secret: str) -> httpx.Response:
        return server.post(TEXT, ASKED, **bearer(secret), **{"Idempotency-Key": "k"})

    with keyed(toy_folder, path, state_dir=state) as server:
        first = ask_as(server, alice)
        assert ask_as(server, bob).content != first.content
        server.process.kill()
    with keyed(toy_folder, path, state_dir=state) as server:
        assert ask_as(server, alice).content == first.content


def test_an_answer_too_large_to_be_kept_is_not_given_twice(toy: Server) -> None:
    more = {"prompt": ["many words"] * 24, "n": 10, "max_tokens": 60, "logprobs": 20}
    first = ask(toy, "large", **more)
    assert first.status_code == 200 and len(first.content) > 4 * 2**20
    again = ask(toy, "large", **more)
    assert again.status_code == 409 and again.json()["error"]["code"] == "answer_not_kept"


def upload(server: Server, content: bytes, **changed: str) -> httpx.Response:
    """As clients send it: each time with another boundary."""
    said = {"purpose": "user_data", "name": "notes.txt", "key": "upload", **changed}
    return server.http.post(
        server.url + "/v1/files",
        files={"file": (said["name"], content)},
        data={"purpose": said["purpose"]},
        headers={"Idempotency-Key": said["key"]},
    )


def test_an_upload_is_the_same_whatever_its_boundary(toy: Server) -> None:
    content = bytes(range(256)) * 2000
    first, again = upload(toy, content), upload(toy, content)
    assert first.request.headers["content-type"] != again.request.headers["content-type"]
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.content == again.content and is_repeated(again)
    others = [{"purpose": "vision"}, {"name": "other.txt"}]
    replies = [upload(toy, content[:-1]), *(upload(toy, content, **more) for more in others)]
    assert [x.json()["error"]["code"] for x in replies] == ["idempotency_key_reused"] * 3
    assert not is_repeated(upload(toy, content, key="upload-2"))


def test_what_is_no_form_is_refused_as_such_whatever_its_key(toy: Server) -> None:
    assert upload(toy, b"a form", key="form").status_code == 200
    whole = b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nvision\r\n--x--\r\n'
    for kind, body, status in (
        ("; boundary=x", whole[:-9], 400),
        ("; boundary=x", b"no form", 400),
        ("", whole, 415),
    ):
        headers = {"Idempotency-Key": "form", "Content-Type": f"multipart/form-data{kind}"}
        reply = toy.http.post(toy.url + "/v1/files", content=body, headers=headers)
        assert reply.status_code == status, body
    assert is_repeated(upload(toy, b"a form", key="form"))
