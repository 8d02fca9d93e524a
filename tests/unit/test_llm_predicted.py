"""What the offline class is told of its answers beforehand."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvasir import LLM, SamplingParams
from kvasir.core.errors import RequestError
from tests import tiny

PROMPTS = ["hello", "there"]
TALK = [{"role": "user", "content": "hello"}]
CONFIG = '{"method": "ngram", "prompt_lookup_min": 2, "adaptive": false}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write_hf(tiny.llama(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    options: dict[str, Any] = {"max_model_len": 96, "max_num_seqs": 4, "threads": 1}
    with LLM(str(folder), speculative_config=CONFIG, **options) as made:
        yield made


def params_of(llm: LLM, **more: Any) -> SamplingParams:
    """Letters alone, so that texts and tokens are the same."""
    ids = [
        llm.get_tokenizer().encode(letter, add_special=False)[-1] for letter in "abcdefghijklmnop"
    ]
    return SamplingParams(max_tokens=24, allowed_token_ids=ids, seed=5, **more)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_its_tokens_are_counted_and_change_no_answer(llm: LLM, temperature: float) -> None:
    params = params_of(llm, temperature=temperature, n=2)
    plain = llm.generate(PROMPTS, params, use_tqdm=False)
    assert not any(x.accepted_prediction_tokens + x.rejected_prediction_tokens for x in plain)
    known: list[Any] = [None, {"type": "content", "content": plain[1].outputs[0].text}]
    for texts in (known, [plain[0].outputs[1].text, None]):
        found = llm.generate(PROMPTS, params, use_tqdm=False, prediction=texts)
        assert [x.outputs for x in found] == [x.outputs for x in plain]
        for text, output in zip(texts, found, strict=True):
            assert (output.accepted_prediction_tokens > 0) == (text is not None)


def test_conversations_take_one_for_all(llm: LLM) -> None:
    params = params_of(llm, temperature=0.0)
    (plain,) = llm.chat(TALK, params, use_tqdm=False)
    text = plain.outputs[0].text
    found = llm.chat([TALK, TALK], params, use_tqdm=False, prediction=text)
    assert [x.outputs for x in found] == [plain.outputs] * 2
    assert all(x.accepted_prediction_tokens >= 8 for x in found)
    wrong = text[:4] + "h" * 8
    (found_wrong,) = llm.chat(TALK, params, use_tqdm=False, prediction=wrong)
    assert found_wrong.outputs == plain.outputs and found_wrong.rejected_prediction_tokens > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["a"], "1 predictions for 2 prompts"),
        (["a", 3], "not int"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "text", "content": "a"}, "type must be content"),
        ("a b " * 100, "the context holds 96"),
    ],
)
def test_bad_ones_are_refused_before_anything_runs(llm: LLM, given: object, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        llm.generate(PROMPTS, use_tqdm=False, prediction=given)
    assert str(caught.value.param).startswith("prediction")


def test_where_it_is_of_no_use_a_warning_says_so(
    llm: LLM, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    params = SamplingParams(max_tokens=2, speculative=False)
    with caplog.at_level(logging.WARNING):
        llm.generate(PROMPTS, params, use_tqdm=False, prediction="abc")
    assert [x.message for x in caplog.records] == [
        "prediction is of no use: speculative asks for no drafts"
    ]
    caplog.clear()
    with LLM(str(folder), max_model_len=96, threads=1) as plain:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            plain.generate(PROMPTS, SamplingParams(max_tokens=2), use_tqdm=False, prediction="abc")
    assert ["does not look texts up" in x.message for x in caplog.records] == [True]
