"""Memory and time of a real server stay within what was planned (R45 to R50, R104)."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from kvasir.cli.main import run_command
from tests import tiny
from tests.e2e.conftest import StartServer
from tests.e2e.harness import AT_ONCE, REAL_ENGINE, Server, canaries, running_server

TEXT, CHAT = "/v1/completions", "/v1/chat/completions"


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def test_r45_requests_of_60_percent_of_the_blocks_answer_as_alone(server: StartServer) -> None:
    def body(i: int) -> dict[str, Any]:
        prompt = [i % 200, *range(2, 61)]
        return {"prompt": prompt, "max_tokens": 36, "ignore_eos": True, "seed": i}

    tight = {"max_total_tokens": 160, "enable_prefix_caching": False}
    with server(module=REAL_ENGINE, engine=tight) as one, ThreadPoolExecutor(32) as pool:
        asked = [pool.submit(one.post, TEXT, body(i)) for i in range(200)]
        together = [reply.result().json()["choices"] for reply in asked]
        assert one.metric("kvasir_num_preemptions_total") > 0
        for i in range(0, 200, 9):
            assert one.post(TEXT, body(i)).json()["choices"] == together[i]
        one.wait_idle()


@pytest.mark.parametrize(("n_blocks", "status"), [(5, 200), (4, 200), (3, 400)])
def test_r46_one_block_more_or_less(server: StartServer, n_blocks: int, status: int) -> None:
    """The request needs four blocks."""
    body = {"prompt": list(range(2, 42)), "max_tokens": 24, "ignore_eos": True}
    with server(module=REAL_ENGINE, engine={"max_total_tokens": n_blocks * 16}) as one:
        reply = one.post(TEXT, body)
        assert reply.status_code == status
        if status == 200:
            assert reply.json()["usage"]["completion_tokens"] == 24
        else:
            said = reply.json()["error"]["message"]
            assert all(count in said for count in ("40", "24", "48"))
        one.wait_idle()


def test_r47_full_kv_blocks_stay_within_their_memory(tmp_path: Path) -> None:
    model = tiny.write_hf(tiny.llama(), tmp_path / "model")
    kv_bytes, slack = 16 << 20, 8 << 20
    options = {"kv_memory": kv_bytes, "max_model_len": 128, "threads": 1}
    with running_server(model, executor="cpu", engine=options) as server:
        engine = psutil.Process(server.engine_pid())
        server.post(TEXT, {"prompt": [5], "max_tokens": 1})
        before = engine.memory_info().rss
        total = 0
        while server.metric("kvasir_kv_cache_blocks_cached") > total or not total:
            total = int(server.metric("kvasir_kv_cache_blocks_cached"))
            prompts = [[1 + i % 40, i % 37, *range(2, 110)] for i in range(total, total + 64)]
            body = {"prompt": prompts, "max_tokens": 1, "cache_salt": f"salt {total}"}
            assert server.post(TEXT, body).status_code == 200
        assert engine.memory_info().rss < before + kv_bytes + slack


UNITS = ("a", " ", "\n", "7", "'s", "e\u0301", "👨\u200d👩\u200d👧", "<|im_end|>", "\u0000")


def test_r48_texts_made_to_hurt_the_tokenizer(toy: Server) -> None:
    with canaries(toy):
        for unit in UNITS:
            text = unit * (900_000 // len(json.dumps(unit)))
            start = time.monotonic()
            reply = toy.post(TEXT, {"prompt": text, "max_tokens": 1})
            assert reply.json()["error"]["code"] == "context_length_exceeded"
            messages = [{"role": "user", "content": text}]
            reply = toy.post(CHAT, {"messages": messages, "max_tokens": 1})
            assert reply.json()["error"]["code"] == "context_length_exceeded"
            assert time.monotonic() - start < AT_ONCE


def test_r50_short_requests_leave_nothing_behind(tmp_path: Path) -> None:
    """``kvasir bench soak`` runs a million; what is bounded fills up within the first thousands."""
    model = tiny.write_hf(tiny.llama(), tmp_path / "model")
    output = tmp_path / "soak.json"
    small = ["--max-model-len", "128", "--kv-memory", "1MiB", "--threads", "1"]
    command = ["bench", "soak", str(model), "--requests", "1500", "--output", str(output), *small]
    assert run_command(command) == 0
    found = json.loads(output.read_text())["results"]
    assert found["n_requests"] == 1500
    assert found["rss_bytes_per_request"] < 8192
    assert found["n_threads"][0] == found["n_threads"][1]
    assert found["n_files"][1] - found["n_files"][0] <= 32


def test_r104_a_prefix_in_the_making_is_not_waited_for_across_salts(server: StartServer) -> None:
    """A request waits for another that computes its prompt only if they share a salt: whether it
    waited shows in its hit."""
    prompt = list(range(2, 66))
    faults = {"seconds": 0.05}
    with server(faults=faults) as one:
        with ThreadPoolExecutor(3) as pool:
            asked = [
                pool.submit(one.post, TEXT, {"prompt": prompt, "max_tokens": 8, "cache_salt": salt})
                for salt in ("a", "b", "b")
            ]
            found = sorted(cached(reply.result().json()) for reply in asked)
        assert found[:2] == [0, 0] and found[2] >= 48


@pytest.mark.parametrize("path", [TEXT, CHAT])
def test_usage_tells_the_hit_everywhere(toy: Server, path: str) -> None:
    text = "the beginning that every one of these requests has in common"
    asked = {"prompt": text} if path == TEXT else {"messages": [{"role": "user", "content": text}]}
    body = {**asked, "cache_salt": f"everywhere {path}", "max_tokens": 2, "temperature": 0}
    assert cached(toy.post(path, body).json()) == 0
    whole = cached(toy.post(path, body).json())
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    events = [
        json.loads(event.removeprefix("data: "))
        for event in toy.post(path, {**body, **streamed}).text.split("\n\n")[:-2]
    ]
    assert whole > 16
    assert cached(events[-1]) == whole
    assert all(event["usage"] is None for event in events[:-1])


def test_prompt_logprobs_skip_the_lookup(toy: Server) -> None:
    body = {"prompt": "a prompt of more than sixteen bytes", "cache_salt": "scored", "seed": 1}
    toy.post(TEXT, body)
    assert cached(toy.post(TEXT, body).json()) > 16
    scored = toy.post(TEXT, {**body, "echo": True, "logprobs": 1}).json()
    assert cached(scored) == 0
    n_prompt = scored["usage"]["prompt_tokens"]
    values = scored["choices"][0]["logprobs"]["token_logprobs"][:n_prompt]
    assert values[0] is None and all(value < 0 for value in values[1:])


def test_a_hit_inside_a_block_answers_as_without(toy: Server) -> None:
    shared = list(range(2, 42))
    first = {"prompt": [*shared, 99, 98, 97, 96, 95, 94, 93, 92], "max_tokens": 1}
    second = {"prompt": [*shared, 60, 61, 62], "max_tokens": 16, "ignore_eos": True, "seed": 5}
    toy.post(TEXT, {**first, "cache_salt": "inside a block"})
    hit = toy.post(TEXT, {**second, "cache_salt": "inside a block"}).json()
    cold = toy.post(TEXT, {**second, "cache_salt": "inside a block, cold"}).json()
    assert (cached(hit), cached(cold)) == (40, 0)
    assert hit["choices"] == cold["choices"]
