"""Fields of ``SamplingParams`` that the offline class and the server share, on a model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from kvasir import LLM, SamplingParams
from kvasir.core.errors import RequestError
from tests import tiny

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder: Path = tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model"))
    with LLM(str(folder), max_model_len=96, max_num_seqs=4, threads=1) as made:
        yield made


def one(llm: LLM, prompt: Any, params: SamplingParams = GREEDY) -> Any:
    (output,) = llm.generate(prompt, params, use_tqdm=False)
    return output


def test_what_may_not_be_said(llm: LLM) -> None:
    tokenizer = llm.get_tokenizer()
    plain = one(llm, "hello there").outputs[0]
    ids = list(dict.fromkeys(plain.token_ids))
    words = [tokenizer.decode([i], continues=True) for i in ids[:2]]
    bad = SamplingParams(temperature=0.0, max_tokens=12, bad_words=[w for w in words if w.strip()])
    assert not set(one(llm, "hello there", bad).outputs[0].token_ids) & set(ids[:2])
    only = SamplingParams(temperature=0.0, max_tokens=12, allowed_token_ids=ids[1:2])
    assert one(llm, "hello there", only).outputs[0].token_ids == ids[1:2] * 12
    with pytest.raises(RequestError, match="bad_words has ' '"):
        one(llm, "hello", SamplingParams(bad_words=[" "]))


def test_who_is_drafted_for(llm: LLM, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody there, which is said; here, who does not decline."""
    wants = SamplingParams(temperature=0.0, max_tokens=12, speculative={"method": "suffix"})
    expected = one(llm, "hello there", wants).outputs[0].token_ids
    assert "this engine drafts nothing" in caplog.text
    folder = str(tiny.write_hf(tiny.llama(), tmp_path))
    config = {"method": "suffix", "adaptive": False}
    with LLM(folder, max_model_len=96, threads=1, speculative_config=config) as drafting:
        n_drafts = []
        for params in (GREEDY, wants, replace(wants, speculative=False), wants):
            assert one(drafting, "hello there", params).outputs[0].token_ids == expected
            assert drafting._open is not None
            n_drafts.append(drafting._open.built.engine.stats().n_drafts)
        assert n_drafts[0] < n_drafts[1] == n_drafts[2] < n_drafts[3]
        with pytest.raises(RequestError, match="method is 'ngram', this engine has suffix"):
            one(drafting, "hi", replace(wants, speculative={"method": "ngram"}))


def test_named_logprobs_have_no_rank(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=2, logprob_token_ids=[7, 3])
    (choice,) = one(llm, "hello there", params).outputs
    assert choice.logprobs is not None and choice.cumulative_logprob is not None
    for token, entry in zip(choice.token_ids, choice.logprobs, strict=True):
        assert list(entry)[:2] == [7, 3] and entry[token].rank == 1
        assert all(entry[i].rank is None for i in {7, 3} - {token})


def test_the_best_of_several(llm: LLM) -> None:
    sampled = {"max_tokens": 6, "seed": 4, "temperature": 2.0}
    five = one(llm, "hello", SamplingParams(**sampled, n=5, logprobs=0)).outputs
    best = one(llm, "hello", SamplingParams(**sampled, n=2, best_of=5)).outputs
    ranked = sorted(five, key=lambda choice: -(choice.cumulative_logprob or 0))
    assert [choice.token_ids for choice in best] == [x.token_ids for x in ranked[:2]]
    assert [choice.index for choice in best] == [0, 1] and best[0].logprobs is None


def test_truncated_prompts_and_stops_of_patterns(llm: LLM) -> None:
    ids = list(range(3, 150))
    cut = {"max_tokens": 3, "truncate_prompt_tokens": 5}
    assert one(llm, ids, SamplingParams(**cut)).prompt_token_ids == ids[-5:]
    right = SamplingParams(**cut, truncation_side="right")
    assert one(llm, ids, right).prompt_token_ids == ids[:5]
    text = one(llm, "hello there").outputs[0].text
    stop = f"[{re.escape(text[4])}].*"
    params = SamplingParams(temperature=0.0, max_tokens=12, stop_regex=stop)
    choice = one(llm, "hello there", params).outputs[0]
    assert (choice.finish_reason, choice.stop_reason) == ("stop", stop)
    assert choice.text == text[: text.index(text[4])]
