"""Images that outlive their request, on the native executor: stored answers, conversations,
batches, and servers that are killed; and images that are fetched."""

from __future__ import annotations

import base64
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests import tiny_vision
from tests.e2e.harness import Server, running_server, wait_until
from tests.e2e.test_images import SIZES, ask, chat, file_of, image, text, words

Json = dict[str, Any]
PATH = "/v1/responses"
ASKED: Json = {"max_output_tokens": 12, "temperature": 0}
DONE = ("completed", "incomplete")
WITHOUT_MODEL = ("/v1/conversations", "/v1/batches")


ANSWERED = threading.Event()
"""What slow addresses wait for."""


class Files(BaseHTTPRequestHandler):
    """Images by their seeds."""

    def do_GET(self) -> None:
        if self.path == "/slow":
            ANSWERED.wait(20)
            return self.send_error(404)
        data = base64.b64decode(file_of(int(self.path[1:])))
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *said: object) -> None:
        pass


@pytest.fixture(scope="module")
def host() -> Iterator[str]:
    """The address of a host of images."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_vision.write(tiny_vision.smolvlm(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(folder: Path, host: str) -> Iterator[Server]:
    domain = host.removeprefix("http://")
    with running_server(folder, executor="cpu", engine=SIZES, allowed_media_domains=domain) as own:
        yield own


def seen(seed: int) -> Json:
    return {"type": "input_image", "image_url": image(seed)["image_url"]["url"]}


def said(*parts: Json) -> Json:
    return {"role": "user", "content": [*parts, {"type": "input_text", "text": "what is it?"}]}


def post(server: Server, body: Json, path: str = PATH) -> Json:
    own = {} if path.startswith(WITHOUT_MODEL) else {"model": server.model}
    answer = server.http.post(server.url + path, json={**own, **body})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def output(response: Json) -> str:
    return str(response["output"][0]["content"][0]["text"])


def ended(server: Server, response_id: str) -> Json:
    wait_until(lambda: server.get(f"{PATH}/{response_id}").json()["status"] in DONE)
    found: Json = server.get(f"{PATH}/{response_id}").json()
    return found


def test_what_is_fetched_is_as_what_is_sent(server: Server, host: str) -> None:
    expected = words(ask(server, image(3), text("what is it?")))
    part = {"type": "image_url", "image_url": {"url": f"{host}/3", "detail": "auto"}}
    assert words(ask(server, part, text("what is it?"))) == expected
    source = {"type": "url", "url": f"{host}/3"}
    blocks = [{"type": "image", "source": source}, text("what is it?")]
    body = {"messages": [{"role": "user", "content": blocks}], "max_tokens": 12, "temperature": 0}
    assert post(server, body, "/v1/messages")["content"][0]["text"] == expected
    for url, why in (("http://localhost/3", "--allowed-media-domains"), (f"{host}/x", "fetched")):
        refused = server.post("/v1/chat/completions", chat({**part, "image_url": {"url": url}}))
        assert refused.status_code == 400 and why in refused.json()["error"]["message"]


def test_slow_addresses_hold_nobody_up(server: Server, host: str) -> None:
    """None of all that read large bodies."""
    long = text("x" * 10_000)
    url = f"{host}/slow"
    item = said(
        {"type": "input_image", "image_url": url}, {"type": "input_text", "text": "x" * 9000}
    )
    slow = chat({"type": "image_url", "image_url": url}, long)
    body = {"input": [item]}
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(server.post, "/v1/chat/completions", slow) for _ in range(3)]
        asked += [pool.submit(server.post, f"{PATH}/input_tokens", body) for _ in range(2)]
        items = {"json": {"items": [item]}}
        asked.append(pool.submit(server.http.post, f"{server.url}/v1/conversations", **items))
        time.sleep(0.5)
        refused = server.http.post(
            f"{server.url}/v1/chat/completions", json={"model": "none", **chat(long)}, timeout=5
        )
        assert refused.status_code == 404
        assert not any(one.done() for one in asked)
        ANSWERED.set()
    assert all("404" in one.result().json()["error"]["message"] for one in asked)


def test_an_answer_goes_on_from_one_with_an_image(server: Server, host: str) -> None:
    fetched = {"type": "input_image", "image_url": f"{host}/4"}
    first = post(server, {**ASKED, "input": [said(fetched)]})
    assert output(first) == output(
        post(server, {**ASKED, "input": [said(seen(4))], "store": False})
    )
    more = [said(seen(5))]
    body = {**ASKED, "input": more, "previous_response_id": first["id"]}
    counted = post(server, body, f"{PATH}/input_tokens")["input_tokens"]
    second = post(server, body)
    whole = [said(seen(4)), {"role": "assistant", "content": output(first)}, *more]
    alone = post(server, {**ASKED, "input": whole, "store": False})
    assert output(second) == output(alone)
    assert counted == second["usage"]["input_tokens"] == alone["usage"]["input_tokens"]
    (item,) = server.get(f"{PATH}/{first['id']}/input_items").json()["data"]
    shown = item["content"][0]
    assert (shown["type"], shown["detail"]) == ("input_image", "auto")
    assert shown["image_url"].partition("base64,")[2] == file_of(4)


def test_a_conversation_holds_images(server: Server, host: str) -> None:
    fetched = {"type": "input_image", "image_url": f"{host}/6", "detail": "auto"}
    name = post(server, {"items": [said(fetched)]}, "/v1/conversations")["id"]
    body = {**ASKED, "input": [said(seen(7))], "conversation": name}
    found = post(server, body)
    alone = post(server, {**ASKED, "input": [said(seen(6)), said(seen(7))], "store": False})
    assert output(found) == output(alone)
    items = server.get(f"/v1/conversations/{name}/items?order=asc").json()["data"]
    images = [item["content"][0]["image_url"] for item in items if item["role"] == "user"]
    assert [x.partition("base64,")[2] for x in images] == [file_of(6), file_of(7)]


def test_a_conversation_takes_as_many_images_as_a_request(server: Server, host: str) -> None:
    """None of more is fetched."""
    part = {"type": "input_image", "image_url": f"{host}/x"}
    items = {"items": [said(*[part] * 10_000)]}
    refused = server.http.post(f"{server.url}/v1/conversations", json=items)
    error = refused.json()["error"]
    assert refused.status_code == 400 and "--limit-mm-per-prompt" in error["message"], error


def test_in_the_background_an_engine_may_die(server: Server) -> None:
    """What is kept has no pixels: they are read again."""
    body = {**ASKED, "input": [said(seen(8))], "max_output_tokens": 350, "ignore_eos": True}
    expected = output(post(server, {**body, "store": False}))
    made = post(server, {**body, "background": True})
    wait_until(lambda: server.get(f"{PATH}/{made['id']}").json()["status"] != "queued")
    os.kill(server.engine_pid(), signal.SIGKILL)
    assert output(ended(server, made["id"])) == expected
    again = server.get(f"{PATH}/{made['id']}?stream=true").text
    events = [json.loads(x[6:]) for x in again.splitlines() if x.startswith("data: {")]
    assert "".join(x["delta"] for x in events if x["type"].endswith("text.delta")) == expected


def test_a_stored_chat_has_its_image(server: Server) -> None:
    stored = ask(server, image(9), text("go on"), store=True)
    assert words(stored) == words(ask(server, image(9), text("go on")))
    path = f"/v1/chat/completions/{stored['id']}"
    assert words(server.get(path).json()) == words(stored)
    (message,) = server.get(f"{path}/messages").json()["data"]
    assert message["content"] == "go on"
    assert [part["type"] for part in message["content_parts"]] == ["image_url", "text"]
    assert message["content_parts"][0]["image_url"] == image(9)["image_url"]


def test_a_batch_has_images(server: Server, host: str) -> None:
    parts = ((image(1),), ({"type": "image_url", "image_url": f"{host}/2"},), (image(1), image(2)))
    lines = [
        {
            "custom_id": str(i),
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"model": server.model, **chat(*each)},
        }
        for i, each in enumerate(parts)
    ]
    file = "\n".join(map(json.dumps, lines)).encode()
    sent = server.http.post(
        f"{server.url}/v1/files", files={"file": ("x.jsonl", file)}, data={"purpose": "batch"}
    )
    window = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    made = post(server, {"input_file_id": sent.json()["id"], **window}, "/v1/batches")
    path = f"/v1/batches/{made['id']}"
    wait_until(lambda: server.get(path).json()["status"] in ("completed", "failed"))
    batch = server.get(path).json()
    assert batch["request_counts"]["completed"] == 3, batch
    told = server.get(f"/v1/files/{batch['output_file_id']}/content").text.splitlines()
    answers = {x["custom_id"]: x["response"]["body"] for x in map(json.loads, told)}
    for i, each in enumerate(((1,), (2,), (1, 2))):
        assert words(answers[str(i)]) == words(ask(server, *map(image, each)))


def test_the_next_server_goes_on(folder: Path, tmp_path: Path) -> None:
    """After kill -9."""
    body = {**ASKED, "input": [said(seen(2))], "max_output_tokens": 300, "ignore_eos": True}
    state = str(tmp_path)
    with running_server(folder, executor="cpu", engine=SIZES, state_dir=state) as first:
        expected = output(post(first, {**body, "store": False}))
        made = post(first, {**body, "background": True})
        wait_until(lambda: first.get(f"{PATH}/{made['id']}").json()["status"] != "queued")
        first.process.kill()
    with running_server(folder, executor="cpu", engine=SIZES, state_dir=state) as second:
        assert output(ended(second, made["id"])) == expected
