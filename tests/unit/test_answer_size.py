"""An answer that would hold too much is refused before anything runs."""

from __future__ import annotations

import pytest

from kvasir.core.errors import RequestError
from kvasir.serve.answer_size import answer_limit, check_answer
from kvasir.serve.resolved import Job
from kvasir.validation.names import Names
from kvasir.validation.params import resolve_params
from kvasir.validation.sampling import SamplingParams


def job(n_prompts: int = 2, n: int = 4, logprobs: int | None = 9, max_tokens: int = 50) -> Job:
    """Prompts of 100 tokens."""
    asked = SamplingParams(n=n, logprobs=logprobs, max_tokens=max_tokens, seed=1)
    first = resolve_params(asked, vocab_size=9, max_model_len=512, n_prompt=100, eos_ids=())
    return Job(((1,) * 100,) * n_prompts, asked, (first,) * n_prompts)


@pytest.mark.parametrize(
    ("asked", "echoes", "streams", "held"),
    [
        (job(), True, False, 2 * 4 * 150 * 10),
        (job(), False, False, 2 * 4 * 50 * 10),
        (job(), True, True, 2 * 4 * 100 * 10),
        (job(logprobs=0), True, False, 2 * 4 * 150),
        (job(logprobs=None), True, False, 2 * 4 * 100),
    ],
)
def test_what_an_answer_holds(asked: Job, echoes: bool, streams: bool, held: int) -> None:
    check_answer(asked, held, echoes=echoes, streams=streams, names=Names())
    with pytest.raises(
        RequestError, match=f"counts as {held} log prob.* at most {held - 1}: lower"
    ):
        check_answer(asked, held - 1, echoes=echoes, streams=streams, names=Names())


@pytest.mark.parametrize("asked", [(job(), False, True), (job(logprobs=None), False, False)])
def test_what_is_not_gathered_or_is_text_alone_is_not_counted(
    asked: tuple[Job, bool, bool],
) -> None:
    check_answer(asked[0], 0, echoes=asked[1], streams=asked[2], names=Names())


def test_the_error_names_what_was_sent_and_the_remedy() -> None:
    with pytest.raises(RequestError) as caught:
        check_answer(job(), 99, echoes=True, streams=False, names=Names(logprobs="top_logprobs"))
    assert caught.value.message == (
        "8 choices of 2 prompts hold up to 1200 tokens with 9 alternatives each, which counts as "
        "12000 log probabilities, an answer holds at most 99: lower n, max_tokens or top_logprobs, "
        "send fewer or shorter prompts, leave out echo, or raise --max-answer-logprobs"
    )
    assert (caught.value.status, caught.value.param) == (400, "top_logprobs")
    with pytest.raises(RequestError) as caught:
        check_answer(job(logprobs=None), 99, echoes=True, streams=False, names=Names())
    assert caught.value.param == "echo"


def test_one_full_context_is_always_an_answer() -> None:
    assert answer_limit(7, 1000) == 21_000
    assert answer_limit(70_000, 1000) == 70_000
