"""API keys of a running server: made, turned and ended by the operator, limited one by one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.serve.app import ROUTES
from kvasir.serve.keys.key import Key, KeyLimits, create
from kvasir.serve.keys.keyfile import KeyFile
from kvasir.serve.salt import block_salt
from tests.e2e.harness import PATIENCE, Server, running_server, wait_until
from tests.e2e.toy_model import write_toy_model

TEXT = "/v1/completions"
SHORT: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 2}
LONG = {**SHORT, "max_tokens": 1200, "ignore_eos": True, "stream": True}


@pytest.fixture
def slow_folder(tmp_path: Path) -> Path:
    """Of a model whose ``LONG`` answer lasts for more than six seconds, whoever reads it."""
    return write_toy_model(tmp_path / "slow", {"seconds": 0.005})


def make(path: Path, key_id: str, *scopes: str, **limits: Any) -> str:
    """Another key of the file, and its secret."""
    key = Key(key_id, scopes or ("inference",), (), 0, limits=KeyLimits(**limits))  # type: ignore[arg-type]
    return KeyFile(path).edit(lambda keys: create(keys, key))


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@contextmanager
def keyed(folder: Path, path: Path, **options: Any) -> Iterator[Server]:
    with running_server(folder, api_key_file=str(path), log_level="debug", **options) as server:
        yield server


@contextmanager
def admin(socket: Path) -> Iterator[httpx.Client]:
    transport = httpx.HTTPTransport(uds=str(socket))
    with httpx.Client(transport=transport, base_url="http://localhost") as client:
        yield client


@contextmanager
def streaming(server: Server, secret: str) -> Iterator[Iterator[str]]:
    """A long answer that has begun."""
    body = {"model": server.model, **LONG}
    with (
        httpx.Client(trust_env=False, timeout=PATIENCE) as client,
        client.stream("POST", server.url + TEXT, json=body, headers=bearer(secret)) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        yield lines


def reload(server: Server, says: str) -> None:
    """The file is read again, as the log says."""
    n_lines = len(server.lines)
    server.process.send_signal(signal.SIGHUP)
    wait_until(lambda: any(says in line for line in server.lines[n_lines:]))


def code(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["code"]


def test_the_operator_makes_turns_and_ends_keys(toy_folder: Path, tmp_path: Path) -> None:
    path, socket = tmp_path / "keys", tmp_path / "admin"
    seen = [make(path, "first", "inference")]
    with keyed(toy_folder, path, admin_uds=str(socket)) as server, admin(socket) as operator:
        made = operator.post("/keys", json={"id": "alice", "limits": {"n": 1}})
        assert made.status_code == 201
        assert made.json()["scopes"] == ["inference", "state"]
        seen.append(made.json()["key"])
        assert server.post(TEXT, SHORT, **bearer(seen[-1])).status_code == 200
        assert server.post(TEXT, {**SHORT, "n": 2}, **bearer(seen[-1])).status_code == 400
        assert server.post(TEXT, SHORT, **{"x-api-key": seen[-1]}).status_code == 200
        assert code(operator.post("/keys", json={"id": "alice"})) == (409, "key_exists")
        assert operator.post("/keys", json={"id": "a", "limit": {}}).status_code == 400
        assert operator.post("/keys", json={"id": "../a"}).status_code == 400

        turned = operator.post("/keys/alice/rotate", json={"overlap": 3600})
        seen.append(turned.json()["key"])
        for secret in seen:
            assert server.post(TEXT, SHORT, **bearer(secret)).status_code == 200
        listed = operator.get("/keys")
        assert [x["id"] for x in listed.json()["data"]] == ["first", "alice"]
        assert "sha256" not in listed.text and not any(secret in listed.text for secret in seen)

        ended = operator.delete("/keys/alice")
        assert (ended.json()["state"], ended.json()["secrets"]) == ("revoked", 0)
        for secret in seen[1:]:
            assert code(server.post(TEXT, SHORT, **bearer(secret))) == (401, "invalid_api_key")
        assert server.post(TEXT, SHORT, **bearer(seen[0])).status_code == 200
        for odd in ("nobody", "%0d%0aX:y", "..", "9" * 4000):
            assert operator.delete(f"/keys/{odd}").status_code in (404, 405)
            assert operator.post(f"/keys/{odd}/rotate", json={}).status_code == 404
        assert list(KeyFile(path).read()) == ["first", "alice"]

        path.write_text("{")  # as after a slip of the hand: what is known stays, and is not lost
        assert operator.post("/keys", json={"id": "bob"}).status_code == 500
        assert path.read_text() == "{"
        assert server.post(TEXT, SHORT, **bearer(seen[0])).status_code == 200
    log = "".join(server.lines)
    assert "serving" in log and not any(secret in log for secret in seen)


def test_a_key_that_expires_ends_nothing_that_runs(slow_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    other = make(path, "other", "inference", "metrics")
    with keyed(slow_folder, path) as server:
        server.http.headers.update(bearer(other))
        # its time begins once the server is up
        short = Key("short", ("inference",), (), 0, expires=int(time.time()) + 4)
        secret = KeyFile(path).edit(lambda keys: create(keys, short))
        reload(server, "the keys were read again: 2")

        def asked() -> httpx.Response:
            return server.post(TEXT, SHORT, **bearer(secret))

        with streaming(server, secret) as lines:
            wait_until(lambda: asked().status_code == 401)
            assert server.metric("kvasir_num_requests_running") == 1
            assert code(asked()) == (401, "expired_api_key")
            assert [line for line in lines if line][-1] == "data: [DONE]"


def test_r108_the_file_is_read_again_when_it_is_asked_for(toy_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    alice = make(path, "alice")
    with keyed(toy_folder, path) as server:
        bob = make(path, "bob")
        assert server.post(TEXT, SHORT, **bearer(bob)).status_code == 401
        reload(server, "the keys were read again: 2")
        assert server.post(TEXT, SHORT, **bearer(bob)).status_code == 200
        path.write_text("{")
        reload(server, "is damaged: Input data was truncated; the keys stay as they were")
        for secret in (alice, bob):
            assert server.post(TEXT, SHORT, **bearer(secret)).status_code == 200


def test_a_key_that_ended_ends_no_answer(toy_folder: Path, tmp_path: Path) -> None:
    path, socket = tmp_path / "keys", tmp_path / "admin"
    secret = make(path, "alice")
    with (
        keyed(toy_folder, path, admin_uds=str(socket)) as server,
        admin(socket) as operator,
        streaming(server, secret) as lines,
    ):
        operator.delete("/keys/alice")
        assert server.post(TEXT, SHORT, **bearer(secret)).status_code == 401
        assert "data: [DONE]" in list(lines)


def test_limits_are_each_keys_own(toy_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    alice = make(path, "alice", requests_per_minute=2, prompt_tokens=4, classes=("batch",))
    bob = make(path, "bob", requests_per_minute=1000)
    with keyed(toy_folder, path) as server:
        batch = {**SHORT, "priority_class": "batch"}
        reply = server.post(TEXT, {**SHORT, "priority_class": "batch"}, **bearer(alice))
        assert reply.status_code == 200
        assert reply.headers["x-ratelimit-limit-requests"] == "2"
        assert reply.headers["x-ratelimit-remaining-requests"] == "1"
        assert re.fullmatch(r"\d+s", reply.headers["x-ratelimit-reset-requests"])
        assert code(server.post(TEXT, SHORT, **bearer(alice))) == (403, "class_not_allowed")
        refused = server.post(TEXT, batch, **bearer(alice))
        assert code(refused) == (429, "rate_limit_exceeded")
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert 1 <= int(refused.headers["retry-after"]) <= 30
        reply = server.post(TEXT, SHORT, **bearer(bob))
        assert reply.headers["x-ratelimit-remaining-requests"] == "999"
        for route in ROUTES:
            if route.access == "public":
                assert not [x for x in server.get(route.path).headers if "ratelimit" in x]


def test_a_prompt_beyond_the_keys_limit_is_named(toy_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret = make(path, "alice", prompt_tokens=4, n=2)
    with keyed(toy_folder, path) as server:
        for body, param in (
            ({"prompt": [5] * 5}, "prompt"),
            ({"prompt": [[5] * 3, [6] * 2]}, "prompt"),
            ({"prompt": [5], "n": 3}, "n"),
            ({"prompt": [[5]] * 3}, "prompt"),
        ):
            reply = server.post(TEXT, {**body, "max_tokens": 1}, **bearer(secret))
            assert code(reply) == (400, "key_limit_exceeded")
            assert reply.json()["error"]["param"] == param
        assert server.post(TEXT, {"prompt": [[5] * 2] * 2}, **bearer(secret)).status_code == 200


def test_requests_at_a_time_are_given_back_by_those_who_leave(
    slow_folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "keys"
    alice, bob = make(path, "alice", concurrency=2), make(path, "bob", concurrency=2)
    with keyed(slow_folder, path) as server:
        with streaming(server, alice), streaming(server, alice):
            refused = server.post(TEXT, SHORT, **bearer(alice))
            assert code(refused) == (429, "concurrency_exceeded")
            assert refused.headers["retry-after"] == "1"
            assert server.post(TEXT, SHORT, **bearer(bob)).status_code == 200
        wait_until(lambda: server.post(TEXT, SHORT, **bearer(alice)).status_code == 200)


def test_a_burst_takes_no_more_than_the_rate(toy_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    secret = make(path, "alice", requests_per_minute=3)
    with keyed(toy_folder, path) as server:
        statuses: list[int] = []

        def ask() -> None:
            statuses.append(server.post(TEXT, SHORT, **bearer(secret)).status_code)

        threads = [threading.Thread(target=ask) for _ in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(statuses)[:3] == [200] * 3 and statuses.count(429) >= 8


def test_another_user_is_not_the_operator(toy_folder: Path, tmp_path: Path) -> None:
    """Though the socket's mode let him connect."""
    if os.geteuid() != 0:
        pytest.skip("only root can be somebody else")
    socket = Path("/tmp") / f"kvasir-admin-{os.getpid()}"
    asks = (
        "import os, socket, sys\n"
        "os.setuid(65534)\n"
        "door = socket.socket(socket.AF_UNIX)\n"
        "door.connect(sys.argv[1])\n"
        "door.sendall(b'POST /reset_prefix_cache HTTP/1.0\\r\\n\\r\\n')\n"
        "print(door.makefile().read())"
    )
    with running_server(toy_folder, admin_uds=str(socket)), admin(socket) as operator:
        assert socket.stat().st_mode & 0o777 == 0o600
        assert operator.post("/reset_prefix_cache").status_code == 200
        socket.chmod(0o666)
        found = subprocess.run(
            [sys.executable, "-c", asks, str(socket)], capture_output=True, text=True, check=True
        )
        assert found.stdout.startswith("HTTP/1.1 403") and "foreign_user" in found.stdout
    assert not socket.exists()


def test_r104_nobody_hits_what_another_key_left(toy_folder: Path, tmp_path: Path) -> None:
    """Neither by the same prompt, nor by any salt: not even the steps of an answer differ."""
    path = tmp_path / "keys"
    alice, bob = make(path, "alice"), make(path, "bob")
    with keyed(toy_folder, path) as server:

        def ask(secret: str, i: int, salt: str | None) -> tuple[int, list[int]]:
            """Cached tokens, and how many tokens of the prompt its steps computed."""
            prompt = [3 + (i * 7 + j) % 200 for j in range(64)]
            body = {"prompt": prompt, "max_tokens": 1, "cache_salt": salt}
            answer = server.post(TEXT, body, **bearer(secret)).json()
            story = server.http.get(
                f"{server.url}/v1/requests/{answer['id']}/timeline", headers=bearer(secret)
            ).json()
            spans = story["choices"][0]["spans"]
            n_cached = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
            return n_cached, [x["tokens"] for x in spans if x["kind"] == "prefill"]

        for i in range(40):
            salt = None if i % 2 else "same"
            new = ask(alice, i, salt)
            guesses = (salt, block_salt("alice", salt or ""), block_salt("", salt or "") or "alice")
            assert [ask(bob, i, guess) for guess in guesses] == [new] * 3, i
            assert ask(alice, i, salt)[0] > 32
    with keyed(toy_folder, path, prefix_sharing="all") as server:
        body = {"prompt": list(range(3, 67)), "max_tokens": 1}
        server.post(TEXT, body, **bearer(alice))
        found = server.post(TEXT, body, **bearer(bob)).json()
        assert found["usage"]["prompt_tokens_details"]["cached_tokens"] > 32


def test_a_batch_needs_what_its_lines_need(toy_folder: Path, tmp_path: Path) -> None:
    """The scope of models, and the class of batches, which its lines have that say none."""
    path = tmp_path / "keys"
    keys = {
        "store": make(path, "store", "state"),
        "now": make(path, "now", "inference", "state", classes=("standard",)),
        "later": make(path, "later", "inference", "state", classes=("batch",)),
    }
    line = {"custom_id": "1", "method": "POST", "url": TEXT, "body": {"model": "toy", **SHORT}}
    form: Any = {"files": {"file": json.dumps(line)}, "data": {"purpose": "batch"}}
    asked = {"endpoint": TEXT, "completion_window": "1h"}
    with keyed(toy_folder, path) as server:
        began = {}
        for name, secret in keys.items():
            known: Any = {"headers": bearer(secret)}
            file = server.http.post(f"{server.url}/v1/files", **form, **known).json()["id"]
            body = {**asked, "input_file_id": file}
            began[name] = server.http.post(f"{server.url}/v1/batches", json=body, **known).json()
        assert began["store"]["error"]["code"] == "insufficient_scope"
        assert began["now"]["error"]["code"] == "class_not_allowed"
        url = f"{server.url}/v1/batches/{began['later']['id']}"
        wait_until(
            lambda: server.http.get(url, headers=bearer(keys["later"])).json()["completed_at"]
        )


def test_r88_templates_of_requests_are_refused(toy: Server) -> None:
    messages = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    template = "{{ messages }}"
    for asked, body in (
        ("/v1/chat/completions", {**messages, "chat_template": template}),
        ("/tokenize", {**messages, "chat_template": template}),
        ("/api/generate", {"prompt": "hi", "template": template}),
    ):
        reply = toy.post(asked, body)
        assert reply.status_code == 403, asked
        assert "the model's own is used" in reply.text
