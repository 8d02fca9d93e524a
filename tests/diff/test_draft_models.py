"""A draft model changes no answer, on the native executor and on the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from kvasir.config.options import EngineOptions
from kvasir.engine.build import build_engine
from tests import tiny
from tests.answers import Answer
from tests.draft_pair import answers_of, write_pair
from tests.forms import n_of
from tests.request_sets import make_requests, make_sharing_requests

REQUESTS = [
    *make_requests(n_of(13, 26), tiny.VOCAB, seed=6, max_prompt=60, max_tokens=40),
    *make_sharing_requests(n_of(13, 26), tiny.VOCAB, seed=7, max_prompt=60, max_tokens=40),
]
REQUESTS = [structs.replace(request, id=i) for i, request in enumerate(REQUESTS)]
FEW = REQUESTS[::4]
SIZES: dict[str, Any] = {
    "max_model_len": 128,
    "max_num_seqs": 6,
    "max_num_batched_tokens": 24,
    "kv_memory": "1MiB",
    "threads": 1,
    "packed_cache": "off",
}
CASES: dict[str, dict[str, Any]] = {
    "all that is asked for": {"adaptive": False, "num_speculative_tokens": 4},
    "what pays": {"num_speculative_tokens": 8},
    "drafts of three at least": {"num_speculative_tokens_min": 3, "adaptive": False},
    "short requests alone": {"max_model_len": 40, "adaptive": False},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="module")
def expected(pair: tuple[str, str]) -> dict[int, Answer]:
    return answers_of(EngineOptions(model=pair[0], **SIZES), REQUESTS)[0]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("overlap", [True, False])
def test_answers_are_those_of_the_target_alone(
    overlap: bool, case: str, pair: tuple[str, str], expected: dict[int, Answer]
) -> None:
    config = json.dumps({"model": pair[1], **CASES[case]})
    options = EngineOptions(
        model=pair[0], speculative_config=config, async_scheduling=overlap, **SIZES
    )
    found, stats = answers_of(options, REQUESTS)
    assert found == expected
    if case != "what pays":
        assert stats.n_accepted > 10 and stats.draft_seconds > 0


@pytest.mark.parametrize("adaptive", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_beside_what_stood_in_texts(
    overlap: bool, adaptive: bool, pair: tuple[str, str], expected: dict[int, Answer]
) -> None:
    """Of both drafters one is taken, for each request and step."""
    lookup = {"method": "suffix", "prompt_lookup_min": 1, "adaptive": adaptive}
    config = [lookup, {"model": pair[1], "num_speculative_tokens": 4, "adaptive": adaptive}]
    options = EngineOptions(
        model=pair[0], speculative_config=json.dumps(config), async_scheduling=overlap, **SIZES
    )
    built = build_engine(options)
    assert built.drafter == "draft_model+suffix"
    built.engine.close()
    found, stats = answers_of(options, REQUESTS)
    assert found == expected
    assert [each.method for each in stats.drafters] == ["draft_model", "suffix"]
    for name in ("n_drafts", "n_drafted", "n_accepted"):
        assert sum(getattr(each, name) for each in stats.drafters) == getattr(stats, name)
    if not adaptive:
        assert stats.n_accepted > 10 and stats.draft_seconds > 0
        assert all(each.n_accepted for each in stats.drafters)
        assert stats.seconds_won, "or lost"


def test_with_few_blocks_requests_give_way_and_come_back(
    pair: tuple[str, str], expected: dict[int, Answer]
) -> None:
    few = SIZES | {"kv_memory": None, "max_total_tokens": 128}
    options = EngineOptions(
        model=pair[0], speculative_model=pair[1], num_speculative_tokens=5, **few
    )
    found, stats = answers_of(options, REQUESTS)
    assert found == expected
    assert stats.n_preemptions > 0


def test_a_draft_model_with_windows_takes_in_what_the_target_does(
    pair: tuple[str, str], expected: dict[int, Answer], tmp_path: Path
) -> None:
    draft = tiny.write_hf(tiny.mistral(window=24), tmp_path / "windowed")
    config = {"model": str(draft), "num_speculative_tokens": 3, "adaptive": False}
    options = EngineOptions(model=pair[0], speculative_config=json.dumps(config), **SIZES)
    found, stats = answers_of(options, REQUESTS)
    assert found == expected
    assert stats.n_drafted > 100


def test_the_reference_drafts_as_the_native_executor_does(pair: tuple[str, str]) -> None:
    config = json.dumps({"model": pair[1], "num_speculative_tokens": 4, "adaptive": False})
    found = []
    for executor in ("cpu", "reference"):
        options = EngineOptions(
            model=pair[0],
            speculative_config=config,
            executor=executor,
            async_scheduling=False,
            dtype="float32",
            **SIZES,
        )
        answers, stats = answers_of(options, FEW)
        tokens = {i: answer.tokens for i, answer in answers.items()}
        found.append((tokens, stats.n_drafted, stats.n_accepted))
    assert found[0] == found[1]
    assert found[0][2] > 4


STANDARD: dict[str, Any] = {"rejection_sample_method": "standard", "adaptive": False}


@pytest.mark.parametrize("overlap", [True, False])
def test_the_classical_rule_changes_no_greedy_answer(
    overlap: bool, pair: tuple[str, str], expected: dict[int, Answer]
) -> None:
    """Nor how many tokens any has; with few blocks, so that slots change hands."""
    few = SIZES | {"kv_memory": None, "max_total_tokens": 128}
    config = json.dumps({"model": pair[1], "num_speculative_tokens": 4, **STANDARD})
    options = EngineOptions(
        model=pair[0], speculative_config=config, async_scheduling=overlap, **few
    )
    built = build_engine(options)
    assert built.follows_drafts and built.ready().follows_drafts
    built.engine.close()
    found, stats = answers_of(options, REQUESTS)
    greedy = [x.id for x in REQUESTS if x.params.temperature == 0 and not x.params.samplers]
    assert len(greedy) > 4 and [found[i] for i in greedy] == [expected[i] for i in greedy]
    assert found.keys() == expected.keys() and found != expected
    assert stats.n_preemptions > 0 and stats.n_accepted > 10


@pytest.mark.parametrize("overlap", [True, False])
def test_by_the_classical_rule_the_reference_draws_as_the_native_executor(
    overlap: bool, pair: tuple[str, str]
) -> None:
    """A model that drafts for itself is always right, though it draws with other noise."""
    for draft in (pair[1], pair[0]):
        found = []
        for executor in ("cpu", "reference"):
            options = EngineOptions(
                model=pair[0],
                speculative_config=json.dumps(
                    {"model": draft, "num_speculative_tokens": 3, **STANDARD}
                ),
                executor=executor,
                async_scheduling=overlap,
                dtype="float32",
                **SIZES,
            )
            answers, stats = answers_of(options, FEW)
            tokens = {i: answer.tokens for i, answer in answers.items()}
            found.append((tokens, stats.n_drafted, stats.n_accepted))
        assert found[0] == found[1]
    n_drafted, n_accepted = found[0][1:]
    assert n_drafted == n_accepted > 20
