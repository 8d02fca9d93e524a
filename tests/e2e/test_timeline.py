"""The timeline of a running server: by the ids that clients see, for the keys that asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvasir.cli.main import run_command
from tests.e2e.harness import REAL_ENGINE, Server, running_server

PROMPT = {"prompt": "explain this request, if you can", "temperature": 0, "ignore_eos": True}


def ask(server: Server, response_id: str) -> httpx.Response:
    return server.get(f"/v1/requests/{response_id}/timeline")


def test_each_choice_of_a_response_is_explained(toy: Server) -> None:
    body = toy.post("/v1/completions", {**PROMPT, "n": 2, "max_tokens": 9}).json()
    found = ask(toy, body["id"]).json()
    assert (found["id"], found["model"]) == (body["id"], toy.model)
    assert [choice["index"] for choice in found["choices"]] == [0, 1]
    for choice in found["choices"]:
        assert choice["state"] == "finished"
        assert choice["prompt_tokens"] == body["usage"]["prompt_tokens"]
        assert choice["summary"]["decode_steps"] == 8
        kinds = [span["kind"] for span in choice["spans"]]
        assert kinds[0] == "queued"
        assert kinds[-2:] == ["decode", "finished"]
        assert choice["spans"][-1]["detail"] == "length"
        times = [span["at"] for span in choice["spans"]]
        assert times == sorted(times)


def test_a_chat_and_a_stream_are_known_by_their_ids_and_a_hit_shows(toy: Server) -> None:
    message = {"messages": [{"role": "user", "content": "a long enough opening of a chat"}]}
    first = toy.post("/v1/chat/completions", {**message, "max_tokens": 3}).json()
    assert first["id"].startswith("chatcmpl-")
    asked = {"model": toy.model, **message, "max_tokens": 3, "stream": True}
    with toy.http.stream("POST", toy.url + "/v1/chat/completions", json=asked) as response:
        lines = [line for line in response.iter_lines() if line]
    streamed = json.loads(lines[0].removeprefix("data: "))["id"]
    (choice,) = ask(toy, streamed).json()["choices"]
    assert choice["summary"]["cached_tokens"] > 16
    assert "prefix_hit" in [span["kind"] for span in choice["spans"]]


def test_an_unknown_id_is_a_404_and_steps_are_bounded(toy: Server) -> None:
    refused = ask(toy, "chatcmpl-0000")
    assert refused.status_code == 404
    assert refused.json()["error"]["code"] == "not_found"
    for query in ("steps=0", "steps=99999", "steps=x", "last=3", "steps=%C2%B2"):
        assert toy.get(f"/v1/timeline?{query}").status_code == 400
    found = toy.get("/v1/timeline?steps=2").json()
    assert len(found["steps"]) <= 2
    assert found["model"] == toy.model


def test_only_the_key_of_a_request_may_read_it(
    server: Callable[..., AbstractContextManager[Server]],
) -> None:
    with server(api_key="secret") as own:
        key = {"Authorization": "Bearer secret"}
        body = own.post("/v1/completions", {**PROMPT, "max_tokens": 2}, **key).json()
        path = f"{own.url}/v1/requests/{body['id']}/timeline"
        assert own.http.get(path).status_code == 401
        assert own.http.get(path, headers={"Authorization": "Bearer other"}).status_code == 401
        assert own.http.get(path, headers=key).json()["id"] == body["id"]
        steps = own.http.get(f"{own.url}/v1/timeline", headers=key).json()["steps"]
        assert {row["id"] for step in steps for row in step["requests"]} == {body["id"]}


def test_the_command_prints_steps_requests_and_a_trace(
    toy: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    body = toy.post("/v1/completions", {**PROMPT, "max_tokens": 4}).json()

    def inspect(*words: str) -> str:
        assert run_command(["inspect", "timeline", "--url", toy.url, *words]) == 0
        return capsys.readouterr().out

    assert inspect("--steps", "3").splitlines()[0].split()[0] == "step"
    assert "finished" in inspect(body["id"])
    path = tmp_path / "trace.json"
    assert "steps written" in inspect("--chrome-trace", str(path))
    trace: dict[str, Any] = json.loads(path.read_text())
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"]
    assert body["id"] in names
    assert run_command(["inspect", "timeline", "--url", toy.url, "cmpl-none"]) == 1


@pytest.mark.parametrize(("policy", "n_blocks"), [("paged", 3), ("contiguous", 253)])
def test_inspect_kv_draws_what_requests_hold(
    toy_folder: Path, capsys: pytest.CaptureFixture[str], policy: str, n_blocks: int
) -> None:
    """40 tokens of a prompt, of an answer of 4000 the first few."""
    options = {"kv_policy": policy, "max_total_tokens": 4096, "max_num_seqs": 2}
    with running_server(toy_folder, module=REAL_ENGINE, engine=options) as one:
        body = {
            "model": one.model,
            "prompt": list(range(2, 42)),
            "max_tokens": 4000,
            "stream": True,
        }
        body |= {"ignore_eos": True}
        with one.http.stream("POST", one.url + "/v1/completions", json=body) as response:
            lines = response.iter_lines()  # the stream ends with its iterator
            next(lines)
            found = one.get("/v1/kv_cache").json()
            assert run_command(["inspect", "kv", "--url", one.url]) == 0
        assert (found["blocks"], found["block_size"], found["running"]) == (256, 16, 1)
        (held,) = found["requests"]
        assert held["id"].startswith("cmpl-") and 40 <= held["tokens"] <= 4040
        if policy == "contiguous":
            assert held["blocks"] == n_blocks
        else:
            assert n_blocks <= held["blocks"] <= -(-held["tokens"] // 16) + 1
        drawn = capsys.readouterr().out.splitlines()
        assert "of 256 blocks used" in drawn[0] and "tokens in blocks: cmpl-" in drawn[1]
