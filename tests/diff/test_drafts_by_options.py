"""Drafters that options choose, on the native executor: answers are those without."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvasir.config.options import EngineOptions
from tests import tiny
from tests.answers import Answer
from tests.draft_pair import answers_of, write_pair
from tests.forms import n_of
from tests.request_sets import make_requests

REQUESTS = make_requests(n_of(8, 20), tiny.VOCAB, seed=6, max_prompt=40, max_tokens=40)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[EngineOptions, dict[int, Answer]]:
    model, _ = write_pair(tmp_path_factory.mktemp("pair"))
    options = EngineOptions(
        model=model,
        max_model_len=128,
        max_num_seqs=4,
        max_num_batched_tokens=24,
        kv_memory="1MiB",
        threads=1,
        packed_cache="off",
    )
    return options, answers_of(options, REQUESTS)[0]


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("method", ['"recycling", "num_speculative_tokens": 5', '"lookahead"'])
def test_answers_are_those_without(
    method: str, overlap: bool, plain: tuple[EngineOptions, dict[int, Answer]]
) -> None:
    options, expected = plain
    config = '{"adaptive": false, "method": ' + method + "}"
    drafting = replace(options, speculative_config=config, async_scheduling=overlap)
    found, stats = answers_of(drafting, REQUESTS)
    assert found == expected
    assert stats.n_drafted > 50 and stats.n_accepted > 0
