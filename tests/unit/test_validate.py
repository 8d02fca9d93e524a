"""Every bound of the sampling parameters: its edge is accepted, beyond is refused by name."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.core.errors import RequestError
from kvasir.core.params import SAMPLERS, TokenParams
from kvasir.validation.params import check, check_prompt, resolve_choices, resolve_params
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.seeds import choice_seed, seeds_from
from kvasir.validation.speculative import (
    beam_notes,
    check_method,
    rule_notes,
    speculative_notes,
)

VOCAB, CONTEXT, PROMPT = 1000, 64, 10

REFUSED: list[tuple[str, Any]] = [
    *[("n", value) for value in (0, -1, 129, 10**9, 1.0, True, "2", None)],
    *[("max_tokens", value) for value in (0, -1, 55, 2**63, 10**4000, 1.5, True)],
    *[("temperature", v) for v in (-1.0, -1e-9, math.nan, math.inf, 1e308, 101, "1", None, True)],
    *[("top_p", value) for value in (0, 0.0, 1.1, -0.1, math.nan, None)],
    *[("top_k", value) for value in (-5, -2, 10**9, 1.0, None)],
    *[("min_p", value) for value in (-0.1, 1.1, math.nan)],
    *[("repetition_penalty", value) for value in (0, -1, 101, math.nan, math.inf)],
    *[("presence_penalty", value) for value in (-2.1, 2.1, math.nan)],
    *[("frequency_penalty", value) for value in (-2.1, 2.1, -math.inf)],
    *[("logprobs", value) for value in (-1, 21, 10**6, 1.0, True)],
    *[("prompt_logprobs", value) for value in (-1, 21, 10**6)],
    *[("min_tokens", value) for value in (-1, 17, 2**70, 0.5)],
    *[("seed", value) for value in (2**64, -(2**63) - 1, 0.5, "7", True)],
    *[("stop", value) for value in ("", ["a", ""], ["a"] * 33, "x" * 4097, ["é" * 2049], [1], 5)],
    *[("stop_token_ids", value) for value in ([-1], [VOCAB], [2**64], [1.0], [1] * 129, 7)],
    *[("logit_bias", value) for value in ({VOCAB: 1.0}, {-1: 1.0}, {"1": 1.0}, [1], {True: 1.0})],
    *[("logit_bias", {1: bias}) for bias in (math.inf, -math.inf, math.nan, 100.5, "1", True)],
    ("logit_bias", dict.fromkeys(range(1025), 0.0)),
    *[("typical_p", value) for value in (0, -0.1, 1.1, math.nan, None, "1")],
    *[("repeat_last_n", value) for value in (-2, 10**7, 1.5, None)],
    *[("best_of", value) for value in (0, -1, 129, 10**9, 1.5)],
    *[("samplers", value) for value in ([], ["mirostat"], ["top_k", "top_k"], "top_k", [1], [[]])],
    *[("allowed_token_ids", v) for v in ([], [-1], [VOCAB], [1.0], [True], [1] * (VOCAB + 1), 7)],
    *[("bad_words", value) for value in ([""], [1], "a", ["a"] * 129, ["x" * 257], [" "])],
    *[("logprob_token_ids", v) for v in ([-1], [VOCAB], [1] * 129, [2**64], ["1"], {1: 1})],
    *[("truncate_prompt_tokens", v) for v in (0, -1, -(2**63), CONTEXT + 1, 2**63, 1.5, "1")],
    *[("truncation_side", value) for value in ("middle", None, 5)],
    *[("stop_regex", value) for value in ("(", "a*", [""], ["a"] * 5, [1], 5, "a{1000}")],
    *[("speculative", value) for value in (1, "suffix", [], {"n_max": 3}, {1: 2})],
    ("ignore_eos", 1),
    ("detokenize", None),
]

ACCEPTED: list[tuple[str, Any]] = [
    *[("n", value) for value in (1, 128)],
    *[("max_tokens", value) for value in (1, 54, None)],
    *[("temperature", value) for value in (0, 1e-30, 100)],
    *[("top_p", value) for value in (1e-9, 1, 1.0)],
    *[("top_k", value) for value in (-1, 0, 1, VOCAB, 10**6)],
    *[("min_p", value) for value in (0, 1)],
    *[("repetition_penalty", value) for value in (0.01, 100)],
    *[("logprobs", value) for value in (None, 0, 20)],
    *[("seed", value) for value in (None, -(2**63), 2**64 - 1)],
    *[("stop", value) for value in (None, "x", [], ["a"] * 32, "x" * 4096)],
    *[("stop_token_ids", value) for value in (None, [], [0, VOCAB - 1])],
    *[("logit_bias", value) for value in (None, {}, {0: -100, VOCAB - 1: 100.0})],
    *[("typical_p", value) for value in (1e-9, 1)],
    *[("repeat_last_n", value) for value in (-1, 0, 10**6)],
    *[("best_of", value) for value in (None, 1, 128)],
    *[("samplers", value) for value in (None, ["temperature"], list(SAMPLERS))],
    *[("allowed_token_ids", value) for value in (None, [0, VOCAB - 1], list(range(VOCAB)))],
    *[("bad_words", value) for value in (None, [], ["a"] * 128, ["x" * 256])],
    *[("logprob_token_ids", value) for value in (None, [], list(range(128)))],
    *[("truncate_prompt_tokens", value) for value in (None, 1, CONTEXT)],
    *[("truncation_side", value) for value in ("left", "right")],
    *[("stop_regex", value) for value in (None, "a", [], ["a"] * 4)],
    *[("speculative", value) for value in (None, True, False, {}, {"method": "suffix"})],
]


def resolved(params: SamplingParams, eos_ids: tuple[int, ...] = (2,)) -> TokenParams:
    return resolve_params(
        params,
        vocab_size=VOCAB,
        max_model_len=CONTEXT,
        n_prompt=PROMPT,
        eos_ids=eos_ids,
        encode=lambda text: [ord(char) % VOCAB for char in text],
    )


@pytest.mark.parametrize(("field", "value"), REFUSED)
def test_refused(field: str, value: Any) -> None:
    params = SamplingParams(**{field: value})
    with pytest.raises(RequestError) as caught:
        resolved(params)
    assert caught.value.param == field
    assert caught.value.status == 400
    assert field in caught.value.message or "stop string" in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize(("field", "value"), ACCEPTED)
def test_accepted(field: str, value: Any) -> None:
    resolved(SamplingParams(**{field: value}))


@pytest.mark.parametrize("field", [f for f in SamplingParams.__struct_fields__ if f != "stop"])
def test_no_value_escapes_as_another_error(field: str) -> None:
    for value in (
        None,
        -1,
        2**80,
        1e400,
        math.nan,
        "",
        "x",
        [],
        [[]],
        {},
        {"a": "b"},
        object(),
        b"x",
    ):
        try:
            resolved(SamplingParams(**{field: value}))
        except RequestError as error:
            assert error.param == field


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        *[(None, -1), (True, -1), ({}, -1), ({"method": "suffix"}, -1), (False, 0)],
        *[({"num_speculative_tokens": n}, n) for n in (0, 1, 10**6)],
    ],
)
def test_what_is_drafted_at_most(asked: Any, expected: int) -> None:
    assert resolved(SamplingParams(speculative=asked)).max_drafts == expected


@pytest.mark.parametrize("most", [-1, 10**6 + 1, 2**80, 1.5, True, "3", None])
def test_a_number_of_drafts_is_one(most: Any) -> None:
    name = "speculative.num_speculative_tokens"
    with pytest.raises(RequestError, match=f"{name} must be an integer") as caught:
        resolved(SamplingParams(speculative={"num_speculative_tokens": most}))
    assert caught.value.param == name


def test_another_method_is_refused_with_the_one_there_is() -> None:
    """Where there is none it is a warning."""
    asked = {"method": "ngram"}
    with pytest.raises(RequestError, match="method is 'ngram', this engine has suffix: use") as no:
        check_method(asked, "suffix")
    assert no.value.param == "speculative.method"
    check_method(asked, "")
    check_method(asked, "ngram")
    with pytest.raises(RequestError, match="this engine has mtp\\+ngram: leave method out"):
        check_method(asked, "mtp+ngram")
    (note,) = speculative_notes(asked, "")
    assert "this engine drafts nothing" in note
    assert not speculative_notes(False, "") and not speculative_notes(asked, "ngram")


def test_a_beam_search_says_that_it_is_not_drafted() -> None:
    (note,) = beam_notes("suffix")
    assert "beams are not drafted" in note and "suffix" in note
    assert not beam_notes("")


def test_who_samples_is_told_that_answers_depend_on_drafts() -> None:
    sampled = TokenParams(seed=1, max_tokens=2)
    (note,) = rule_notes(sampled, follows_drafts=True)
    assert "depends on timing" in note
    unasked = msgspec.structs.replace(sampled, temperature=0.0, samplers=("top_k",))
    assert rule_notes(unasked, follows_drafts=True)
    assert not rule_notes(sampled, follows_drafts=False)
    for more in ({"temperature": 0.0}, {"max_drafts": 0}, {"constraint": "x"}):
        assert not rule_notes(msgspec.structs.replace(sampled, **more), follows_drafts=True)


def test_min_tokens_above_max_tokens_names_both() -> None:
    with pytest.raises(RequestError, match=r"min_tokens \(5\) exceeds max_tokens \(4\)"):
        resolved(SamplingParams(max_tokens=4, min_tokens=5))


def test_context_is_counted() -> None:
    with pytest.raises(
        RequestError, match=r"10 tokens and max_tokens asks for 55 more, .* 64"
    ) as e:
        resolved(SamplingParams(max_tokens=55))
    assert e.value.code == "context_length_exceeded"
    assert resolved(SamplingParams(max_tokens=None)).max_tokens == CONTEXT - PROMPT
    limits = {"vocab_size": VOCAB, "max_model_len": CONTEXT}
    with pytest.raises(RequestError, match=r"^max_tokens asks for 65, but the context holds 64"):
        check(SamplingParams(max_tokens=65), n_prompt=0, **limits)
    with pytest.raises(RequestError, match="64 tokens"):
        check(SamplingParams(max_tokens=None), n_prompt=CONTEXT, **limits)


def test_scoring_alone_needs_no_room() -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    check(params, vocab_size=VOCAB, max_model_len=CONTEXT, n_prompt=CONTEXT)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([], "empty"),
        ([0] * 65, "65 tokens, but the context holds 64"),
        ([0] * 640, "640 tokens"),
        ([-1], "token id -1"),
        ([VOCAB], "token id 1000"),
        ([2**64], "token id"),
        ([1.0], "float"),
        ([True], "bool"),
        ([None], "NoneType"),
    ],
)
def test_prompts_refused(prompt: list[Any], message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        check_prompt(prompt, vocab_size=VOCAB, max_model_len=CONTEXT)
    assert caught.value.param == "prompt"


def test_prompts_accepted() -> None:
    check_prompt([0, VOCAB - 1] * 32, vocab_size=VOCAB, max_model_len=CONTEXT)


def test_resolution() -> None:
    params = SamplingParams(
        seed=-1,
        top_k=-1,
        logprobs=3,
        stop_token_ids=[7, 5, 7],
        logit_bias={9: 1, 3: -1},
        max_tokens=4,
    )
    assert resolved(params, eos_ids=(2, 5)) == TokenParams(
        seed=2**64 - 1,
        max_tokens=4,
        n_logprobs=3,
        stop_ids=(2, 5, 7),
        logit_bias=((3, -1.0), (9, 1.0)),
    )
    assert resolved(SamplingParams(ignore_eos=True)).stop_ids == ()
    assert resolved(SamplingParams(top_k=VOCAB)).top_k == 0


def test_choices_differ_in_seed_only_and_score_the_prompt_once() -> None:
    params = SamplingParams(n=3, seed=11, prompt_logprobs=2)
    first, *others = resolve_choices(
        params, vocab_size=VOCAB, max_model_len=CONTEXT, n_prompt=PROMPT, eos_ids=(2,)
    )
    assert first == resolved(params)
    for i, other in enumerate(others, 1):
        assert other.seed == choice_seed(11, i)
        assert other == msgspec.structs.replace(first, seed=other.seed, n_prompt_logprobs=-1)


def test_missing_seeds_are_drawn_anew() -> None:
    assert len({resolved(SamplingParams()).seed for _ in range(20)}) == 20


def test_seeds_drawn_from_a_seed_repeat() -> None:
    limits = {"vocab_size": VOCAB, "max_model_len": CONTEXT, "n_prompt": PROMPT, "eos_ids": ()}

    def drawn(seed: int | None) -> list[int]:
        draw = seeds_from(seed)
        return [draw() for _ in range(3)]

    assert drawn(3) == drawn(3) != drawn(4)
    assert drawn(None) != drawn(None)
    assert resolve_choices(SamplingParams(seed=8), **limits)[0].seed == 8
    assert len({resolve_choices(SamplingParams(), **limits)[0].seed for _ in range(3)}) == 3


@given(st.integers(-(2**63), 2**64 - 1))
def test_seeds_are_taken_modulo_2_to_64(seed: int) -> None:
    assert resolved(SamplingParams(seed=seed)).seed == seed % 2**64
