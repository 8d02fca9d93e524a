"""The sampling specification, by literal expectations and by statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.core.params import TokenParams
from kvasir.sampling import numerics, philox
from kvasir.sampling.numerics import F32
from kvasir.sampling.reference import SlotState, logprobs, sample_row
from kvasir.validation.seeds import choice_seed


def row(*values: float) -> F32:
    return np.array(values, np.float32)


def params(**fields: object) -> TokenParams:
    return TokenParams(**{"seed": 1, "max_tokens": 9, **fields})  # type: ignore[arg-type]


def draw(logits: F32, own: TokenParams, out_index: int = 0) -> int:
    return sample_row(logits, SlotState(own, ()), out_index).token


def drawn(logits: F32, own: TokenParams, n: int = 400) -> set[int]:
    return {draw(logits, own, i) for i in range(n)}


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(
    counter: tuple[int, ...], key: tuple[int, int], expected: tuple[int, ...]
) -> None:
    """The vectors that its authors publish with Random123."""
    assert tuple(philox.philox4x32(np.array(counter, np.uint32), key)) == expected


def test_draws_place_tokens_in_counters() -> None:
    seed, out_index = 0x0123456789ABCDEF, 0x200000007
    words = philox.philox4x32(np.array([5, 7, 2, 0], np.uint32), (0x89ABCDEF, 0x01234567))
    assert philox.draws(seed, out_index, np.arange(20, 24)).tolist() == words.tolist()


def test_noise_is_finite_for_every_extreme_word() -> None:
    words = np.array([0, 1, 2**31, 2**32 - 129, 2**32 - 128, 2**32 - 1], np.uint32)
    noise = philox.exponential(words)
    assert np.isfinite(noise).all() and (noise > 0).all()
    assert noise[0] == pytest.approx(2**-33)
    assert noise[-1] == noise[-2] == noise[-3] == pytest.approx(24 * math.log(2))
    assert (np.diff(noise) >= 0).all()


def test_functions_are_accurate() -> None:
    x = np.linspace(-86.9, 0, 200_001).astype(np.float32)
    exact = np.exp(x.astype(np.float64))
    assert np.max(np.abs(numerics.exp(x) - exact) / exact) < 1.5 * 2**-24
    x = np.exp(np.linspace(-80, 80, 200_001)).astype(np.float32)
    exact = np.log(x.astype(np.float64))
    assert np.max(np.abs(numerics.log(x) - exact) / np.maximum(np.abs(exact), 1e-3)) < 2**-23
    assert numerics.exp(row(0.0, -0.0, -87.1, -np.inf)).tolist() == [1, 1, 0, 0]
    assert numerics.log_scalar(np.float32(1)) == 0


@given(st.lists(st.floats(0, 1, width=32), max_size=3000))
def test_tile_sum_is_a_sum(values: list[float]) -> None:
    assert numerics.tile_sum(row(*values)) == pytest.approx(math.fsum(values), rel=1e-5, abs=1e-30)


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_draws_follow_the_softmax(seed: int) -> None:
    """Pearson's test over 5,000 draws of 12 tokens; 24.7 is the 99 % quantile for 11 degrees."""
    logits = np.linspace(-2, 2, 12).astype(np.float32)
    n, temperature = 5_000, 0.8
    noise = np.stack([philox.noise(seed, i, np.arange(12)) for i in range(n)])
    scores = logits / np.float32(temperature) - numerics.log(noise)
    counts = np.bincount(np.argmax(scores, axis=1), minlength=12)
    own = params(seed=seed, temperature=temperature)
    assert [draw(logits, own, i) for i in range(300)] == np.argmax(scores, axis=1)[:300].tolist()
    expected = np.exp(logits / temperature)
    expected *= n / expected.sum()
    assert float(np.sum((counts - expected) ** 2 / expected)) < 24.7


def test_noise_of_neighbours_is_independent() -> None:
    """Correlation over 2^16 pairs stays within four standard deviations."""
    tokens = np.arange(1 << 16)
    base = philox.noise(1, 0, tokens)
    for other in (philox.noise(2, 0, tokens), philox.noise(1, 1, tokens), np.roll(base, 1)):
        assert abs(np.corrcoef(base, other)[0, 1]) < 4 / math.sqrt(tokens.size)


def test_greedy_takes_the_largest_and_the_lowest_of_ties() -> None:
    assert draw(row(1, 3, 2, 3), params(temperature=0.0)) == 1
    assert draw(row(-0.0, 0.0), params(temperature=0.0)) == 0


@pytest.mark.parametrize("temperature", [1e-50, 1e-45, 1e-40, 1e-30, 1e-10])
def test_tiny_temperatures_keep_the_largest_logits(temperature: float) -> None:
    assert drawn(row(1, 3, 2.9999, -np.inf), params(temperature=temperature)) == {1}


def test_tiny_temperature_still_draws_among_equals() -> None:
    assert drawn(row(3, 1, 3), params(temperature=1e-30)) == {0, 2}


def test_top_k_breaks_ties_by_id() -> None:
    assert drawn(row(0, 1, 1, 1, 0), params(top_k=2)) == {1, 2}
    assert drawn(row(0, 1, 2), params(top_k=7)) == {0, 1, 2}


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = np.log(row(0.5, 0.25, 0.125, 0.125))
    assert drawn(logits, params(top_p=0.45)) == {0}
    assert drawn(logits, params(top_p=0.7)) == {0, 1}
    assert drawn(logits, params(top_p=0.8)) == {0, 1, 2}
    assert drawn(logits, params(top_p=0.9)) == {0, 1, 2, 3}


@pytest.mark.parametrize("top_p", [1e-50, 1e-9, 0.01])
def test_tiny_top_p_keeps_one_token(top_p: float) -> None:
    assert drawn(row(1, 1, 1), params(top_p=top_p)) == {0}


def test_top_p_sees_what_top_k_left() -> None:
    logits = np.log(row(0.4, 0.3, 0.2, 0.1))
    assert drawn(logits, params(top_p=0.55)) == {0, 1}
    assert drawn(logits, params(top_p=0.55, top_k=2)) == {0}


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = np.log(row(0.5, 0.3, 0.15, 0.05))
    assert drawn(logits, params(min_p=0.25)) == {0, 1, 2}
    assert drawn(logits, params(min_p=1.0)) == {0}


def test_penalties_are_closed_forms_of_counts() -> None:
    """Token 0 twice in the output, 1 only in the prompt, 2 in the path, 3 nowhere."""
    own = params(
        temperature=0.0, repetition_penalty=2.0, frequency_penalty=0.5, presence_penalty=0.25
    )
    state = SlotState(own, (1, 1), (0,))
    state.commit(0)
    for best, logits in (
        (3, row(8, 5.4, 6.4, 2.8)),  # 8/2 - 2*0.5 - 0.25 = 2.75
        (0, row(8, 5.4, 6.4, 2.7)),
        (1, row(8, 5.6, 6.4, 2.7)),  # 5.6/2 = 2.8
        (2, row(8, 5.4, 7.2, 2.7)),  # 7.2/2 - 0.5 - 0.25 = 2.85
    ):
        assert sample_row(logits, state, 3, (2,)).token == best
    assert sample_row(row(-1, -1, -9, -1.9), state, 3, (2,)).token == 3  # -1 becomes -2 and less


def test_a_path_counts_as_if_it_were_committed() -> None:
    own = params(repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=-0.4, n_logprobs=2)
    logits = np.random.default_rng(0).normal(0, 1, 30).astype(np.float32)
    committed = SlotState(own, (1, 2, 3), (4, 5))
    for token in (6, 6, 4):
        committed.commit(token)
    for out_index in range(50):
        expected = sample_row(logits, committed, out_index)
        opened = SlotState(own, (1, 2, 3), (4, 5))
        assert sample_row(logits, opened, out_index, (6, 6, 4)) == expected
        reopened = SlotState(own, (1, 2, 3), (4, 5, 6, 6, 4))
        assert sample_row(logits, reopened, out_index) == expected


def test_bias_and_min_tokens() -> None:
    own = params(temperature=0.0, logit_bias=((2, 5.0), (0, -1.0)), stop_ids=(2,), min_tokens=2)
    logits = row(1, 0.5, 0)
    assert [draw(logits, own, i) for i in range(4)] == [1, 1, 2, 2]


def test_logprobs_are_those_of_the_raw_logits() -> None:
    logits = np.log(row(0.1, 0.4, 0.4, 0.1))
    own = params(temperature=0.0, logit_bias=((3, 50.0),), n_logprobs=3)
    out = sample_row(logits, SlotState(own, ()), 0)
    assert (out.token, out.rank) == (3, 4)
    assert out.logprob == pytest.approx(math.log(0.1), rel=1e-6)
    assert [token for token, _ in out.top] == [1, 2, 0]
    assert [math.exp(value) for _, value in out.top] == pytest.approx([0.4, 0.4, 0.1], rel=1e-6)
    assert sample_row(logits, SlotState(params(), ()), 0).rank == 0


def test_target_is_scored_and_not_drawn() -> None:
    logits = np.log(row(0.1, 0.2, 0.7))
    own = params(temperature=0.0, logit_bias=((0, 100.0),), n_prompt_logprobs=1)
    out = sample_row(logits, SlotState(own, ()), 0, target=1)
    assert (out.token, out.rank, out.top[0][0]) == (1, 2, 2)
    assert out.logprob == pytest.approx(math.log(0.2), rel=1e-6)


def test_impossible_tokens_are_not_listed() -> None:
    own = params(temperature=0.0, n_logprobs=5)
    out = sample_row(row(-np.inf, 1, -np.inf), SlotState(own, ()), 0)
    assert out.top == ((1, 0.0),)


@given(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=200))
def test_probabilities_sum_to_one(values: list[float]) -> None:
    assert np.exp(logprobs(row(*values)).astype(np.float64)).sum() == pytest.approx(1, abs=1e-4)


@given(st.integers(0, 2**64 - 1))
def test_choice_seeds_differ_and_the_first_is_the_seed(seed: int) -> None:
    seeds = [choice_seed(seed, i) for i in range(128)]
    assert seeds[0] == seed
    assert len(set(seeds)) == 128
    assert all(0 <= s < 2**64 for s in seeds)


def test_choice_seeds_never_change() -> None:
    """A replay after an upgrade must draw the same tokens."""
    assert choice_seed(42, 1) == 0xFCDD8EB4E566769C
