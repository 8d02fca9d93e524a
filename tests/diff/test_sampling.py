"""Native sampler against its NumPy specification, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from kvasir import _native
from kvasir.core.params import SAMPLERS, TokenParams, mask_words
from kvasir.core.plan import RowOutput
from kvasir.sampling import philox, reference
from kvasir.sampling.masks import Bits, allows, apply
from kvasir.sampling.numerics import F32
from kvasir.sampling.reference import SlotState, sample_row

History = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""Prompt, output, and what was committed since."""


def native_row(
    logits: F32,
    params: TokenParams,
    history: History = ((), (), ()),
    out_index: int = 0,
    path: Sequence[int] = (),
    target: int = -1,
    mask: Bits | None = None,
) -> RowOutput:
    """What is drawn, whether or not the largest logits of each so many columns are known."""
    sampler = _native.Sampler(1, logits.size)
    prompt, output, commits = history
    sampler.open(0, params, prompt, output)
    for token in commits:
        sampler.commit(0, token)
    found = [
        sampler.sample(0, logits.copy(), out_index, list(path), target, columns, mask)
        for columns in (0, 16, 48, 512)
    ]
    assert all(one == found[0] for one in found), found
    token, logprob, rank, top = found[0]
    return RowOutput(token, logprob, tuple(top), rank)


def reference_row(
    logits: F32,
    params: TokenParams,
    history: History = ((), (), ()),
    out_index: int = 0,
    path: Sequence[int] = (),
    target: int = -1,
    mask: Bits | None = None,
) -> RowOutput:
    prompt, output, commits = history
    state = SlotState(params, prompt, output)
    for token in commits:
        state.commit(token)
    return sample_row(logits, state, out_index, path, target, mask)


def make_logits(rng: np.random.Generator, vocab: int) -> F32:
    """Rows of many shapes: smooth, peaked, few distinct values, constant, huge; some -inf."""
    kind = rng.integers(6)
    x = rng.normal(0, rng.choice([0.1, 1.0, 4.0]), vocab)
    if kind == 1:
        x[rng.integers(vocab, size=3)] += 15
    elif kind == 2:
        x = np.round(x * 2) / 2
    elif kind == 3:
        x = np.full(vocab, rng.choice([-3.0, -0.0, 0.0, 7.5]))
        x[rng.integers(vocab)] *= -1
    elif kind == 4:
        x = x * 1e37
    if rng.random() < 0.3:
        x[rng.random(vocab) < rng.choice([0.1, 0.95])] = -np.inf
    return x.astype(np.float32)


def make_params(rng: np.random.Generator, vocab: int) -> TokenParams:
    def maybe(values: Sequence[float], neutral: float) -> float:
        return float(rng.choice(values)) if rng.random() < 0.4 else neutral

    some = [int(t) for t in rng.integers(vocab, size=3)]
    names = rng.permutation(SAMPLERS)[: rng.integers(1, len(SAMPLERS) + 1)]
    return TokenParams(
        seed=int(rng.integers(2**64, dtype=np.uint64)),
        max_tokens=8,
        min_tokens=int(rng.integers(4)),
        temperature=maybe([0.0, 1e-50, 1e-40, 1e-30, 0.01, 0.7, 1.5, 100.0], 1.0),
        top_p=maybe([1e-50, 1e-6, 0.1, 0.5, 0.9, 0.999999], 1.0),
        top_k=int(maybe([1, 2, 5, 50, 700, 10**6], 0)),
        min_p=maybe([1e-42, 1e-9, 0.05, 0.5, 1.0], 0.0),
        repetition_penalty=maybe([0.01, 0.9, 1.1, 100.0], 1.0),
        presence_penalty=maybe([-2.0, 0.3, 2.0], 0.0),
        frequency_penalty=maybe([-1.1, 0.2, 2.0], 0.0),
        typical_p=maybe([1e-50, 1e-6, 0.1, 0.5, 0.9, 0.999999], 1.0),
        repeat_last_n=int(maybe([0, 1, 3, 7, 20, 10**6], -1)),
        samplers=tuple(names.tolist()) if rng.random() < 0.2 else (),
        allowed=make_mask(rng, vocab).tobytes() if rng.random() < 0.2 else b"",
        bad_words=make_words(rng, vocab) if rng.random() < 0.3 else (),
        logprob_ids=tuple(some) if rng.random() < 0.2 else (),
        logit_bias=tuple((t, float(rng.choice([-100, -1.5, 3, 100]))) for t in set(some)),
        stop_ids=tuple(some) if rng.random() < 0.5 else (),
        n_logprobs=int(rng.choice([-1, 0, 1, 5, 20])),
        n_prompt_logprobs=int(rng.choice([-1, 0, 3])),
    )


def make_words(rng: np.random.Generator, vocab: int) -> tuple[tuple[int, ...], ...]:
    """Of few different tokens, so that some of them are about to be put out."""
    sizes = rng.integers(1, 5, size=rng.integers(1, 20))
    return tuple(tuple(rng.integers(min(vocab, 4), size=n).tolist()) for n in sizes)


def make_mask(rng: np.random.Generator, vocab: int) -> Bits:
    """Some words, none or all; bits past the vocabulary are anything."""
    bits = rng.integers(2**32, size=mask_words(vocab), dtype=np.uint32)
    kind = rng.integers(4)
    if kind == 1:
        bits &= rng.integers(2**32, size=bits.size, dtype=np.uint32) & 0x11111111
    elif kind == 2:
        bits[rng.random(bits.size) < 0.9] = 0
    elif kind == 3:
        bits[:] = rng.choice([0, 2**32 - 1])
    return bits


@pytest.mark.parametrize("vocab", [1, 2, 3, 15, 16, 17, 63, 64, 65, 1000, 1024, 1025, 5000, 49152])
def test_native_equals_reference(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    for _ in range(12 if vocab > 10000 else 150):
        logits, params = make_logits(rng, vocab), make_params(rng, vocab)
        n_ids = vocab if rng.random() < 0.5 else min(vocab, 4)
        prompt, output, commits, path = (
            [int(t) for t in rng.integers(n_ids, size=n)] for n in rng.integers(0, 9, size=4)
        )
        target = int(rng.integers(vocab)) if rng.random() < 0.1 else -1
        out_index = int(rng.choice([0, 1, 3, 17, 2**31, 2**35 + 5]))
        mask = make_mask(rng, vocab) if rng.random() < 0.4 else None
        args = (logits, params, (prompt, output, commits), out_index, path, target, mask)
        assert native_row(*args) == reference_row(*args), (params, prompt, output, commits, path)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**40), st.integers(0, 300_000))
def test_philox_word(seed: int, out_index: int, token: int) -> None:
    expected = philox.draws(seed, out_index, np.array([token]))[0]
    assert _native.philox(seed, out_index, token) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.floats(width=32, allow_nan=True, allow_infinity=True, allow_subnormal=True),
        min_size=1,
        max_size=70,
    ),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([0.3, 1.0]),
    st.integers(0, 3),
)
def test_any_floats(values: list[float], temperature: float, top_p: float, top_k: int) -> None:
    logits = np.array(values, np.float32)
    params = TokenParams(
        seed=1, max_tokens=1, temperature=temperature, top_p=top_p, top_k=top_k, n_logprobs=4
    )
    expected = reference_row(logits, params)
    assert native_row(logits, params) == expected
    if np.isnan(logits).any() or np.isposinf(logits).any() or np.isneginf(logits).all():
        assert expected.token == reference.NOT_FINITE
    else:
        assert logits[expected.token] > -np.inf


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 15, 16, 1023, 4999])
def test_one_bad_entry_is_found(bad: float, place: int) -> None:
    logits = np.zeros(5000, np.float32)
    logits[place] = bad
    params = TokenParams(seed=1, max_tokens=1, temperature=0.0)
    assert native_row(logits, params).token == reference.NOT_FINITE
    assert reference_row(logits, params).token == reference.NOT_FINITE


def test_everything_banned() -> None:
    logits = np.zeros(4, np.float32)
    for temperature in (0.0, 1.0):
        params = TokenParams(
            seed=1, max_tokens=2, min_tokens=1, temperature=temperature, stop_ids=(0, 1, 2, 3)
        )
        assert native_row(logits, params) == reference_row(logits, params)
        assert native_row(logits, params).token == reference.NOTHING_LEFT
        assert native_row(logits, params, out_index=1).token >= 0


def test_a_mask_forbids_before_all_else_and_changes_no_logprob() -> None:
    rng = np.random.default_rng(3)
    for vocab in (5, 64, 1000):
        for _ in range(40):
            logits, mask = make_logits(rng, vocab), make_mask(rng, vocab)
            params = structs.replace(
                make_params(rng, vocab), n_logprobs=3, n_prompt_logprobs=3, logprob_ids=()
            )
            drawn = native_row(logits, params, mask=mask)
            if drawn.token >= 0:
                assert allows(mask, drawn.token)
                assert drawn == native_row(logits, params, target=drawn.token)
    open_mask, none = np.full(1, 2**32 - 1, np.uint32), np.zeros(1, np.uint32)
    row, params = np.zeros(32, np.float32), TokenParams(seed=1, max_tokens=1)
    assert native_row(row, params, mask=open_mask) == native_row(row, params)
    assert native_row(row, params, mask=none).token == reference.NOTHING_LEFT
    one = np.array([1 << 9], np.uint32)
    biased = structs.replace(params, logit_bias=((3, 100.0),), top_k=1)
    assert native_row(row, biased, mask=one).token == 9


@pytest.mark.parametrize("vocab", [1, 31, 33, 63, 64, 65, 127, 129, 1000])
def test_a_mask_is_the_same_as_logits_that_are_minus_infinity(vocab: int) -> None:
    """Where nothing else is asked for, the row is read where it lies."""
    rng = np.random.default_rng(vocab)
    for out_index in range(60):
        logits, mask = make_logits(rng, vocab), make_mask(rng, vocab)
        params = TokenParams(
            seed=vocab,
            max_tokens=99,
            temperature=float(rng.choice([1e-40, 0.3, 1.0, 3.0])),
            min_p=float(rng.choice([0.0, 0.2])),
        )
        held = logits.copy()
        apply(held, mask)
        drawn = native_row(logits, params, out_index=out_index, mask=mask)
        assert drawn == reference_row(logits, params, out_index=out_index, mask=mask)
        if (held > -np.inf).any():
            assert drawn.token == native_row(held, params, out_index=out_index).token
        elif np.isfinite(logits.max()):
            assert drawn.token == reference.NOTHING_LEFT


def test_v_of_one_is_excluded() -> None:
    """A word that rounds to 2**32 must not win: find one, its noise is finite and the same."""
    seed, vocab = 0, 1 << 16
    for out_index in range(2000):
        words = philox.draws(seed, out_index, np.arange(vocab))
        hits = np.flatnonzero(words >= 2**32 - 128)
        if hits.size:
            break
    assert hits.size, "a seed without such a word proves nothing"
    noise = philox.noise(seed, out_index, hits)
    assert np.isfinite(noise).all() and (noise < 17).all()
    params = TokenParams(seed=seed, max_tokens=1)
    logits = np.zeros(vocab, np.float32)
    drawn = native_row(logits, params, out_index=out_index)
    assert drawn == reference_row(logits, params, out_index=out_index)
    assert drawn.token == int(np.argmin(philox.noise(seed, out_index, np.arange(vocab))))


def test_refuses_ids_outside_the_vocabulary() -> None:
    sampler = _native.Sampler(2, 8)
    params = TokenParams(seed=1, max_tokens=1)
    with pytest.raises(ValueError, match="prompt token 8 is outside the vocabulary of 8"):
        sampler.open(0, params, [8], [])
    sampler.open(0, params, [1], [])
    with pytest.raises(ValueError, match="committed token -1"):
        sampler.commit(0, -1)
    with pytest.raises(ValueError, match="never opened"):
        sampler.sample(1, np.zeros(8, np.float32), 0, [], -1)
    with pytest.raises(ValueError, match="target token 9"):
        sampler.sample(0, np.zeros(8, np.float32), 0, [], 9)
    with pytest.raises(ValueError, match="path token 9"):
        sampler.sample(0, np.zeros(8, np.float32), 0, [9], -1)
    with pytest.raises(ValueError, match="one bit per token"):
        sampler.sample(0, np.zeros(8, np.float32), 0, [], -1, 0, np.zeros(0, np.uint32))
    with pytest.raises(ValueError, match="one entry per token"):
        sampler.sample(0, np.zeros(7, np.float32), 0, [], -1)


def test_reopening_replaces_the_slot() -> None:
    logits = np.zeros(8, np.float32)
    sampler = _native.Sampler(1, 8)
    params = TokenParams(seed=3, max_tokens=1, temperature=0.0, presence_penalty=1.0)
    sampler.open(0, params, [], [0, 1])
    assert sampler.sample(0, logits.copy(), 0, [2], -1)[0] == 3
    sampler.open(0, params, [], [])
    assert sampler.sample(0, logits.copy(), 0, [], -1)[0] == 0


def test_hash_row_depends_on_every_bit_and_place() -> None:
    row = np.arange(100, dtype=np.float32)
    seen = {_native.hash_row(row)}
    for i in (0, 50, 99):
        changed = row.copy()
        changed[i] = np.nextafter(changed[i], np.float32(np.inf))
        seen.add(_native.hash_row(changed))
    seen.add(_native.hash_row(row[::-1].copy()))
    seen.add(_native.hash_row(row[:99].copy()))
    assert len(seen) == 6
    assert _native.hash_row(np.array([0.0], np.float32)) != _native.hash_row(
        np.array([-0.0], np.float32)
    )


def test_draws_do_not_depend_on_batch_order_or_threads() -> None:
    rng = np.random.default_rng(5)
    vocab, n_slots = 3000, 12
    rows = [make_logits(rng, vocab) for _ in range(n_slots)]
    sampler = _native.Sampler(n_slots, vocab)
    every = [make_params(rng, vocab) for _ in range(n_slots)]
    for slot, own in enumerate(every):
        sampler.open(slot, own, [1, 2], [3])

    def draw(slot: int) -> tuple[int, float, int, list[tuple[int, float]]]:
        return sampler.sample(slot, rows[slot].copy(), 4, [slot], -1)

    alone = [draw(slot) for slot in range(n_slots)]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            order = [int(slot) for slot in rng.permutation(n_slots)]
            results = list(threads.map(draw, order))
            assert results == [alone[slot] for slot in order]
