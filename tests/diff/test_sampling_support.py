"""Draws of both samplers against vLLM's definition: never outside its support, and all of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.core.params import TokenParams
from kvasir.sampling import reference
from kvasir.sampling.numerics import F32
from kvasir.sampling.reference import SlotState, sample_row
from tests.diff.vllm_support import support
from tests.forms import n_of

N_SETS, N_DRAWS = n_of(2_500, 10_000), 8
VOCABULARIES = (1, 2, 3, 17, 64, 65, 300, 1100)


def make_logits(rng: np.random.Generator, vocab: int) -> F32:
    """Flat to peaked, sometimes of few distinct values, some impossible."""
    x = rng.normal(0, rng.choice([0.01, 0.5, 2.0, 6.0]), vocab)
    kind = rng.integers(4)
    if kind == 1:
        x[rng.integers(vocab, size=2)] += rng.uniform(0, 12)
    elif kind == 2:
        x = np.round(x)
    elif kind == 3:
        x = np.sort(x)[::-1] if rng.random() < 0.5 else np.full(vocab, x[0])
    if rng.random() < 0.2:
        x[rng.random(vocab) < 0.3] = -np.inf
        x[rng.integers(vocab)] = 0
    return x.astype(np.float32)


def make_params(rng: np.random.Generator, vocab: int) -> TokenParams:
    def maybe(value: float, neutral: float) -> float:
        return value if rng.random() < 0.6 else neutral

    words = [tuple(rng.integers(min(vocab, 3), size=n).tolist()) for n in rng.integers(1, 4, 9)]
    allowed = rng.integers(256, size=4 * -(-vocab // 32), dtype=np.uint8)
    some = tuple(sorted({int(t) for t in rng.integers(vocab, size=4)}))
    return TokenParams(
        seed=int(rng.integers(2**63)),
        max_tokens=9,
        min_tokens=int(rng.integers(3)) * 4,
        temperature=0.0 if rng.random() < 0.05 else maybe(rng.uniform(0.05, 3), 1.0),
        top_p=maybe(rng.uniform(0.01, 1), 1.0),
        top_k=int(maybe(1 + rng.integers(vocab), 0)),
        min_p=maybe(rng.choice([0.001, 0.05, 0.3, 1.0]), 0.0),
        repetition_penalty=maybe(rng.uniform(0.7, 1.6), 1.0),
        presence_penalty=maybe(rng.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(rng.uniform(-2, 2), 0.0),
        allowed=allowed.tobytes() if rng.random() < 0.2 else b"",
        bad_words=tuple(words) if rng.random() < 0.3 else (),
        logit_bias=tuple((t, rng.uniform(-9, 9)) for t in some) if rng.random() < 0.4 else (),
        stop_ids=some if rng.random() < 0.5 else (),
    )


def native_draws(
    logits: F32, params: TokenParams, prompt: Sequence[int], output: Sequence[int], n: int
) -> list[int]:
    """One for each of ``n`` seeds."""
    sampler = _native.Sampler(1, logits.size)
    drawn = []
    for i in range(n):
        own = reseeded(params, i)
        sampler.open(0, own, prompt, output)
        drawn.append(sampler.sample(0, logits.copy(), len(output), [], -1)[0])
    return drawn


def reseeded(params: TokenParams, i: int) -> TokenParams:
    fields = {name: getattr(params, name) for name in params.__struct_fields__}
    return TokenParams(**{**fields, "seed": params.seed + i})


def test_draws_are_never_outside_the_support() -> None:
    rng = np.random.default_rng(11)
    n_cut = n_unsure = 0
    for _ in range(N_SETS):
        vocab = int(rng.choice(VOCABULARIES))
        logits, params = make_logits(rng, vocab), make_params(rng, vocab)
        prompt, output = (
            rng.integers(vocab if rng.random() < 0.5 else min(vocab, 3), size=n).tolist()
            for n in rng.integers(8, size=2)
        )
        found = support(logits, params, prompt, output)
        drawn = native_draws(logits, params, prompt, output, N_DRAWS)
        state = SlotState(params, prompt, output)
        assert sample_row(logits, state, len(output)).token == drawn[0]
        if not found.possible.any():
            assert set(drawn) == {reference.NOTHING_LEFT}
            continue
        assert found.possible[drawn].all(), (params, prompt, output)
        n_cut += not found.possible.all()
        n_unsure += bool((found.possible & ~found.sure).any())
    assert n_cut > N_SETS / 2
    assert n_unsure < N_SETS / 3


N_FREQUENCIES, N_DRAWN = n_of(100, 150), 2000


def test_what_is_sure_is_drawn_as_often_as_it_weighs() -> None:
    """Pearson's test where nothing is uncertain, as a standard normal (Wilson and Hilferty)."""
    rng = np.random.default_rng(12)
    scores: list[float] = []
    while len(scores) < N_FREQUENCIES:
        logits, params = make_logits(rng, 64), make_params(rng, 64)
        output = rng.integers(64, size=8).tolist()
        found = support(logits, params, (), output)
        n_kept = int(found.sure.sum())
        if n_kept < 3 or n_kept == 64 or (found.possible != found.sure).any():
            continue
        sampler = _native.Sampler(1, 64)
        sampler.open(0, params, (), output)
        drawn = [sampler.sample(0, logits.copy(), 8 + i, [], -1)[0] for i in range(N_DRAWN)]
        state = SlotState(params, (), output)
        assert [sample_row(logits, state, 8 + i).token for i in range(5)] == drawn[:5]
        scores += _pearson(np.bincount(drawn, minlength=64), found.weight * found.sure)
    assert max(scores) < 4.3
    assert abs(sum(scores)) < 4 * math.sqrt(len(scores))


def _pearson(counts: NDArray[np.int64], weight: NDArray[np.float64]) -> list[float]:
    """Tokens expected fewer than five times count with the rarest of the others; empty when all
    are."""
    expected = weight * counts.sum() / weight.sum()
    assert not counts[expected == 0].any()
    often = expected >= 5
    found, wanted = counts[often].astype(np.float64), expected[often]
    degrees = wanted.size - 1
    if degrees < 1:
        return []
    rarest = np.argmin(wanted)
    found[rarest] += counts[~often].sum()
    wanted[rarest] += expected[~often].sum()
    statistic = float(((found - wanted) ** 2 / wanted).sum())
    part = 2 / (9 * degrees)
    return [((statistic / degrees) ** (1 / 3) - (1 - part)) / math.sqrt(part)]
