"""Stages in an order of the request's own, typical-p, the window of penalties, and what is
forbidden."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir.core.params import SAMPLERS, TokenParams
from kvasir.sampling import reference
from kvasir.sampling.numerics import F32
from kvasir.sampling.reference import SlotState, sample_row
from kvasir.validation.restrict import allowed_mask, spell_words, spelling

FOUR = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))


def params(**fields: object) -> TokenParams:
    return TokenParams(**{"seed": 1, "max_tokens": 9, **fields})  # type: ignore[arg-type]


def drawn(logits: F32, own: TokenParams, n: int = 200, output: tuple[int, ...] = ()) -> set[int]:
    state = SlotState(own, (), output)
    return {sample_row(logits, state, i).token for i in range(n)}


def greedy(logits: F32, own: TokenParams, prompt: tuple[int, ...], output: tuple[int, ...]) -> int:
    return sample_row(logits, SlotState(own, prompt, output), 0).token


def test_filters_before_the_temperature_see_the_plain_probabilities() -> None:
    both = {"min_p": 0.25, "temperature": 2.0}
    assert drawn(FOUR, params(**both)) == {0, 1, 2, 3}
    assert drawn(FOUR, params(**both, samplers=("min_p", "temperature"))) == {0, 1, 2}
    assert drawn(FOUR, params(**both, samplers=("temperature", "min_p"))) == {0, 1, 2, 3}


def test_each_stage_sees_what_the_others_left() -> None:
    both = {"top_k": 2, "top_p": 0.6}
    assert drawn(FOUR, params(**both, samplers=("top_k", "top_p"))) == {0}
    assert drawn(FOUR, params(**both, samplers=("top_p", "top_k"))) == {0, 1}


def test_what_is_left_out_does_nothing() -> None:
    own = {"top_k": 1, "temperature": 0.0, "frequency_penalty": 2.0, "samplers": ("top_p",)}
    assert drawn(FOUR, params(**own), output=(0, 0)) == {0, 1, 2, 3}


def test_penalties_come_when_they_are_said_to() -> None:
    own = {"top_k": 1, "repetition_penalty": 100.0}
    row = np.array([3, 2, 0], np.float32)
    assert drawn(row, params(**own, samplers=("penalties", "top_k")), output=(0,)) == {1}
    assert drawn(row, params(**own, samplers=("top_k", "penalties")), output=(0,)) == {0}


def test_the_usual_order_said_is_the_usual_order() -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        row = rng.normal(0, 2, 40).astype(np.float32)
        own = params(
            seed=int(rng.integers(2**60)),
            temperature=float(rng.choice([0.0, 0.7, 1.4])),
            top_k=int(rng.integers(0, 20)),
            top_p=float(rng.uniform(0.2, 1)),
            min_p=float(rng.uniform(0, 0.2)),
            typical_p=float(rng.choice([1.0, 0.6])),
            presence_penalty=0.5,
        )
        said = reference_of(own, samplers=SAMPLERS)
        for i in range(5):
            assert greedy_at(row, own, i) == greedy_at(row, said, i)


def reference_of(own: TokenParams, **changed: object) -> TokenParams:
    fields = {name: getattr(own, name) for name in own.__struct_fields__}
    return TokenParams(**{**fields, **changed})


def greedy_at(row: F32, own: TokenParams, out_index: int) -> int:
    return sample_row(row, SlotState(own, (1, 2), (3, 3)), out_index).token


def typical(p: NDArray[np.float64], share: float) -> tuple[set[int], float]:
    """Meister et al. in their own words, and how far the border is from changing."""
    surprise = -np.log(p)
    distance = np.abs(surprise - (p * surprise).sum())
    order = np.argsort(distance, kind="stable")
    reached = np.cumsum(p[order])
    n = int((reached < share).sum()) + 1
    return set(order[:n].tolist()), float(np.abs(reached - share).min())


def test_typical_p_keeps_tokens_of_usual_surprise() -> None:
    rng, n_cut = np.random.default_rng(3), 0
    for _ in range(60):
        row = rng.normal(0, rng.uniform(0.5, 2), 8).astype(np.float32)
        p = np.exp(row.astype(np.float64))
        p /= p.sum()
        share = float(rng.uniform(0.1, 0.9))
        kept, margin = typical(p, share)
        if margin < 1e-3 or p[list(kept)].min() < 0.03:
            continue
        assert drawn(row, params(typical_p=share)) == kept
        n_cut += 0 not in kept or len(kept) < 8
    assert n_cut > 15


def test_typical_p_may_leave_the_likeliest_out() -> None:
    row = np.log(np.array([0.3] + [0.1] * 7, np.float32))
    assert drawn(row, params(typical_p=0.25)) == {1, 2, 3}
    last = params(typical_p=0.25, temperature=0.0, samplers=("typ_p", "temperature"))
    assert drawn(row, last, 3) == {1}
    assert drawn(row, params(typical_p=0.25, temperature=0.0), 3) == {0}


def test_equal_distances_keep_the_lowest_ids() -> None:
    assert drawn(np.zeros(10, np.float32), params(typical_p=0.25)) == {0, 1, 2}


def test_penalties_look_at_the_newest_tokens() -> None:
    row = np.array([2.0, 1.9, 1.8, 1.7], np.float32)
    own = {"temperature": 0.0, "presence_penalty": 1.0}
    output = (0, 1, 2)
    picked = [greedy(row, params(**own, repeat_last_n=n), (), output) for n in (-1, 0, 1, 2, 3, 9)]
    assert picked == [3, 0, 0, 0, 3, 3]
    own = {"temperature": 0.0, "repetition_penalty": 10.0}
    picked = [greedy(row, params(**own, repeat_last_n=n), (0, 1), (2,)) for n in (-1, 0, 1, 2, 3)]
    assert picked == [3, 0, 0, 0, 3]
    counted = params(temperature=0.0, frequency_penalty=0.1, repeat_last_n=2)
    assert greedy(np.array([1, 0.85], np.float32), counted, (), (0, 0, 0)) == 1
    assert greedy(np.array([1, 0.75], np.float32), counted, (), (0, 0, 0)) == 0


def test_the_last_token_of_a_bad_word_does_not_follow_the_others() -> None:
    row = np.array([0.0, 1.0, 2.0], np.float32)
    own = params(temperature=0.0, bad_words=((2, 2), (1, 0, 1, 2), (0, 1, 1)))
    cases = {(): 2, (2,): 1, (0, 1): 2, (1, 0, 1): 0, (2, 1, 0, 1): 0, (0, 1, 1): 2}
    for output, token in cases.items():
        assert greedy(row, own, (), output) == token
        state = SlotState(own, output, output[:1])  # a prompt counts for nothing
        assert sample_row(row, state, 0, output[1:]).token == token


def test_a_word_of_one_token_is_never_drawn() -> None:
    own = params(bad_words=((0,), (2,)))
    assert drawn(np.zeros(4, np.float32), own) == {1, 3}
    assert not own.needs_outputs
    assert params(bad_words=((0,), (2, 1))).needs_outputs


def test_only_what_is_allowed_is_drawn() -> None:
    own = params(allowed=allowed_mask([1, 40, 1], 70))
    assert drawn(np.zeros(70, np.float32), own) == {1, 40}
    banned = params(allowed=allowed_mask([1], 70), bad_words=((1,),))
    assert drawn(np.zeros(70, np.float32), banned, 1) == {reference.NOTHING_LEFT}


def test_named_tokens_are_reported_in_the_place_of_the_likeliest() -> None:
    own = params(temperature=0.0, n_logprobs=2, logprob_ids=(3, 0))
    output = sample_row(FOUR, SlotState(own, ()), 0)
    assert [token for token, _ in output.top] == [3, 0]
    assert output.top[0][1] == pytest.approx(np.log(0.05)) and output.rank == 1


def test_words_are_spelled_at_a_beginning_and_after_a_space() -> None:
    """With a space where that makes as many other tokens, as vLLM has it."""
    vocabulary = {"bad": (1,), " bad": (2,), "very bad": (3, 2), " very bad": (4, 5, 2), "x": (6,)}
    vocabulary[" x"] = (6,)
    spelled = spell_words(["bad", " very bad", "x", "bad"], lambda text: vocabulary[text], 9)
    assert spelled == ((1,), (2,), (3, 2), (6,))


def test_words_are_spelled_one_at_a_time() -> None:
    """On the event loop: a text between two yields, and the same ids at the end."""
    asked: list[str] = []

    def encode(text: str) -> tuple[int, ...]:
        asked.append(text)
        return tuple(text.encode())

    words = ["bad", "bad", " very bad", *(f"x{i}" for i in range(126))]
    work, n = spelling(words, encode), 0
    with pytest.raises(StopIteration) as ended:
        while True:
            next(work)
            n += 1
            assert len(asked) == n
    assert n == 2 * 128  # each word once, in both ways
    found = ended.value.value
    assert spell_words(words, found.__getitem__, 256) == spell_words(words, encode, 256)
