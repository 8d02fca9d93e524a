"""A draft model with other tokens: what it drafts are the target's, and no answer changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kvasir.config.options import EngineOptions
from tests import tiny
from tests.answers import Answer
from tests.draft_pair import answers_of
from tests.other_words import reordered, write_other
from tests.request_sets import make_requests, make_sharing_requests

REQUESTS = [
    *make_requests(10, tiny.VOCAB, seed=6, max_prompt=40, max_tokens=30),
    *make_sharing_requests(10, tiny.VOCAB, seed=7, max_prompt=40, max_tokens=30),
]
REQUESTS = [structs.replace(request, id=i) for i, request in enumerate(REQUESTS)]
SIZES: dict[str, Any] = {
    "max_model_len": 96,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 24,
    "kv_memory": "1MiB",
    "threads": 1,
    "packed_cache": "off",
}

KEYS = {"adaptive": False, "num_speculative_tokens": 4}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("target") / "target"))


@pytest.fixture(scope="module")
def expected(target: str) -> dict[int, Answer]:
    return answers_of(EngineOptions(model=target, **SIZES), REQUESTS)[0]


def drafted(target: str, draft: Path, **more: Any) -> EngineOptions:
    config = {"model": str(draft), "use_heterogeneous_vocab": True, **KEYS}
    return EngineOptions(model=target, speculative_config=json.dumps(config), **SIZES | more)


def test_the_target_in_other_words_is_always_right(
    target: str, expected: dict[int, Answer], tmp_path: Path
) -> None:
    """Sampled answers, too: it draws with the noise of the target's ids."""
    draft = write_other(tiny.llama(), tmp_path, reordered())
    free = [x for x in REQUESTS if not x.params.constraint]
    found, stats = answers_of(drafted(target, draft), free)
    assert found == {request.id: expected[request.id] for request in free}
    assert stats.n_accepted == stats.n_drafted > 50


@pytest.mark.parametrize("overlap", [True, False])
def test_where_it_lacks_tokens_it_drafts_others(
    overlap: bool, target: str, expected: dict[int, Answer], tmp_path: Path
) -> None:
    draft = write_other(tiny.llama(), tmp_path, reordered(280))
    options = drafted(target, draft, async_scheduling=overlap)
    found, stats = answers_of(options, REQUESTS)
    assert found == expected
    assert 10 < stats.n_accepted < stats.n_drafted


def test_so_it_is_on_the_reference(
    target: str, expected: dict[int, Answer], tmp_path: Path
) -> None:
    draft = write_other(tiny.llama(), tmp_path, reordered())
    free = [x for x in REQUESTS[:8] if not x.params.constraint]
    options = drafted(target, draft, executor="reference", async_scheduling=False)
    answers, stats = answers_of(options, free)
    assert {i: x.tokens for i, x in answers.items()} == {i: expected[i].tokens for i in answers}
    assert stats.n_accepted == stats.n_drafted > 20


def test_a_shorter_table_of_the_same_tokens_needs_no_asking(
    target: str, expected: dict[int, Answer], tmp_path: Path
) -> None:
    """Models of one family pad theirs differently."""
    padded = tiny.llama("padded", vocab_size=352)
    draft = tiny.write_hf(padded, tmp_path)
    config = {"model": str(draft), "adaptive": False}
    options = EngineOptions(model=target, speculative_config=json.dumps(config), **SIZES)
    found, stats = answers_of(options, REQUESTS[:6])
    assert found == {i: expected[i] for i in found}
    assert stats.n_drafted > 50
