"""What was answered before is drafted: the answer stays what it was, and the server says how much
it drafted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.harness import Server, running_server

PATH = "/v1/completions"
SUFFIX = '{"method": "suffix", "num_speculative_tokens": 6, "adaptive": false}'
COUNTS = tuple(
    f"kvasir_spec_decode_num_{what}_total" for what in ("drafts", "draft_tokens", "accepted_tokens")
)


@pytest.fixture(scope="module")
def drafting(toy_folder: Path) -> Iterator[Server]:
    sizes = {"max_model_len": 128, "speculative_config": SUFFIX}
    with running_server(
        toy_folder, executor="cpu", metrics_prefix="kvasir", engine=sizes
    ) as server:
        yield server


def answer(server: Server, **more: Any) -> dict[str, Any]:
    body = {"prompt": "of old", "max_tokens": 40, "seed": 5, "ignore_eos": True, "logprobs": 1}
    reply = server.post(PATH, {**body, **more})
    assert reply.status_code == 200
    choice: dict[str, Any] = reply.json()["choices"][0]
    return choice


def counts(server: Server) -> list[float]:
    return server.metrics(*COUNTS)


def test_an_answer_that_was_given_before_is_drafted(drafting: Server) -> None:
    expected, before = answer(drafting), counts(drafting)
    assert answer(drafting) == expected
    n_drafts, n_drafted, n_accepted = (
        now - then for now, then in zip(counts(drafting), before, strict=True)
    )
    assert n_drafts <= 16 and n_drafted <= 60
    assert n_accepted >= 28, "nearly all of 40"


def test_another_salt_finds_nothing(drafting: Server) -> None:
    """Nor can its time tell what was asked."""
    asked = {"prompt": "of others", "temperature": 1.0}
    before = counts(drafting)
    expected = answer(drafting, **asked, cache_salt="mine")
    one_more = counts(drafting)
    assert answer(drafting, **asked, cache_salt="theirs") == expected
    last = counts(drafting)
    assert [x - y for x, y in zip(last, one_more, strict=True)] == [
        x - y for x, y in zip(one_more, before, strict=True)
    ], "of itself alone"
    assert answer(drafting, **asked, cache_salt="mine") == expected
    assert counts(drafting)[2] > last[2] + 20
