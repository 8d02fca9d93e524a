"""Another token in the middle of an answer: what the page does where somebody chooses one."""

from __future__ import annotations

from typing import Any

from tests.e2e.conftest import StartServer
from tests.e2e.harness import Server

N_TOKENS, AT = 2000, 1500
MAX_STEPS = 3


def complete(server: Server, prompt: list[int], n_tokens: int) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": n_tokens, "temperature": 0, "ignore_eos": True}
    answer = server.post("/v1/completions", {**body, "return_token_ids": True})
    told: dict[str, Any] = answer.json()
    return told


def test_a_branch_far_into_an_answer_begins_at_once(
    native_toy: Server, server: StartServer
) -> None:
    """What was answered is in the prefix cache, all but a part of a block."""
    prompt = [*range(40, 100)]
    ids = complete(native_toy, prompt, N_TOKENS)["choices"][0]["token_ids"]
    other = (ids[AT] + 1) % 200
    branch = [*prompt, *ids[:AT], other]
    told = complete(native_toy, branch, 40)
    timeline = native_toy.get(f"/v1/requests/{told['id']}/timeline").json()["choices"][0]
    chunks = [span for span in timeline["spans"] if span["kind"] == "prefill"]
    assert 1 <= len(chunks) <= MAX_STEPS and sum(span["tokens"] for span in chunks) < 64
    with server(executor="native") as fresh:
        again = complete(fresh, branch, 40)
    assert again["choices"][0]["token_ids"] == told["choices"][0]["token_ids"]
