"""The classical rule of speculation: the native sampler against its NumPy specification, bit for
bit, and both rules against the distribution that they must keep."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kvasir import _native
from kvasir.core.params import TokenParams, mask_words
from kvasir.sampling.classical import Role
from kvasir.sampling.numerics import F32
from kvasir.sampling.reference import SlotState, sample_row
from tests.diff.test_sampling import make_logits, make_params
from tests.forms import IS_LONG, n_of

F64 = NDArray[np.float64]
VOCAB = 12
N_DRAWS = 100_000
LIMIT = 3.72
"""Standard deviations: one of 100 checks is beyond it with a probability of 0.01."""


def near(rng: np.random.Generator, logits: F32) -> F32:
    """What a draft program could think of it."""
    with np.errstate(over="ignore"):
        drafted = logits + rng.normal(0, rng.choice([0.0, 0.3, 3.0]), logits.size)
    return np.minimum(drafted, 3e38).astype(np.float32)


@pytest.mark.parametrize("vocab", [1, 2, 16, 63, 65, 1025, 5000])
def test_native_equals_reference(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    n_kept = n_judged = 0
    for _ in range(n_of(60, 300)):
        logits, params = make_logits(rng, vocab), make_params(rng, vocab)
        native, state = _native.Sampler(1, vocab, 3), SlotState(params, n_kept=3)
        native.open(0, params, (), ())
        first = int(rng.choice([0, 1, 2**33]))
        path: list[int] = []
        for index in range(first, first + 4):  # one more than is kept
            row = near(rng, logits)
            token = sample_row(row, state, index, path, role=Role(drafts=True)).token
            assert native.sample(0, row.copy(), index, path, -1, drafts=True)[0] == token
            if token < 0:
                break
            path.append(token)
        for i, token in enumerate(path):
            role = Role(drafted=token)
            expected = sample_row(logits, state, first + i, path[:i], role=role)
            is_kept = expected.token == token
            found = native.sample(0, logits.copy(), first + i, path[:i], -1, drafted=token)
            assert found[:3] == (expected.token, expected.logprob, expected.rank), params
            mask = rng.integers(0, 2**32, mask_words(vocab), dtype=np.uint32)
            expected = sample_row(logits, state, first + i, path[:i], mask=mask, role=role)
            found = native.sample(
                0, logits.copy(), first + i, path[:i], -1, mask=mask, drafted=token
            )
            assert found[:3] == (expected.token, expected.logprob, expected.rank), params
            n_judged += 1
            n_kept += is_kept
    assert vocab == 1 or 0.2 < n_kept / n_judged < 0.98


def test_what_another_request_drafted_in_the_slot_is_forgotten() -> None:
    own = TokenParams(seed=3, max_tokens=9)
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 1, 64).astype(np.float32)
    sampler, plain = _native.Sampler(1, 64, 2), _native.Sampler(1, 64)
    plain.open(0, own, (), ())
    for index in range(40):
        sampler.open(0, own, (), ())
        drafted = sampler.sample(0, near(rng, logits), index, [], -1, drafts=True)[0]
        sampler.open(0, own, (), ())
        found = sampler.sample(0, logits.copy(), index, [], -1, drafted=drafted)
        assert found == plain.sample(0, logits.copy(), index, [], -1)


def exact(logits: F64, temperature: float, top_k: int, top_p: float, min_p: float) -> F64:
    """Probabilities of what the filters leave, without the sampler's arithmetic."""
    p = np.exp((logits - logits.max()) / temperature)
    p[p < min_p * p.max()] = 0
    order = np.argsort(-p, kind="stable")
    if top_k:
        p[order[top_k:]] = 0
    reached = np.cumsum(p[order]) / p.sum()
    p[order[int(np.searchsorted(reached, top_p - 1e-9)) + 1 :]] = 0
    return p / p.sum()


def rows(seed: int, n: int) -> F64:
    """Logits of a target after each of ``n`` texts."""
    return np.random.default_rng(seed).normal(0, 1.2, (n, VOCAB))


def drafts(target: F64, alpha: float) -> F64:
    """Logits of a draft program that is right with a probability of about ``alpha``."""
    p = np.exp(target)
    p /= p.sum(axis=1, keepdims=True)
    q = alpha * p
    q[np.arange(len(p)), p.argmin(axis=1)] += 1 - alpha
    return np.log(q)


def excess(counts: F64, expected: F64) -> float:
    """Of chi-square over what it is by chance, in standard deviations (Wilson and Hilferty)."""
    assert not counts[expected == 0].any()
    counts, expected = counts[expected > 0], expected[expected > 0] * counts.sum()
    k = counts.size - 1
    chi = ((counts - expected) ** 2 / expected).sum()
    return float(((chi / k) ** (1 / 3) - (1 - 2 / (9 * k))) / np.sqrt(2 / (9 * k)))


FILTERS: dict[str, dict[str, Any]] = {
    "no filter": {},
    "the likeliest five": {"top_k": 5},
    "three quarters": {"top_p": 0.75},
    "a tenth of the likeliest": {"min_p": 0.1, "temperature": 1.5},
    "cool": {"temperature": 0.6},
}
ALPHAS = (0.1, 0.3, 0.5, 0.7, 0.9)
EVERY = [*product(FILTERS, ALPHAS, ("standard", "coupled"))]
CASES = EVERY if IS_LONG else [EVERY[i] for i in (4, 12, 29, 38)]


@pytest.mark.parametrize(("name", "alpha", "rule"), CASES)
def test_pairs_of_tokens_have_the_distribution_of_the_target(
    name: str, alpha: float, rule: str
) -> None:
    """Each of two tokens is drafted, the second one behind what was drafted first: as long as that
    is right it counts."""
    params = TokenParams(seed=77, max_tokens=9, **FILTERS[name])
    usual = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | FILTERS[name]
    sampler = _native.Sampler(1, VOCAB, 2 if rule == "standard" else 0)
    sampler.open(0, params, (), ())
    target = rows(int(10 * alpha), 1 + VOCAB)
    draft = drafts(target, alpha)
    t32, d32 = target.astype(np.float32), draft.astype(np.float32)
    sample, counts, n_right = sampler.sample, np.zeros((VOCAB, VOCAB)), 0
    for index in range(0, 2 * N_DRAWS, 2):
        a = sample(0, d32[0].copy(), index, [], -1, drafts=True)[0]
        b = sample(0, d32[1 + a].copy(), index + 1, [], -1, drafts=True)[0]
        first = sample(0, t32[0].copy(), index, [], -1, drafted=a)[0]
        n_right += first == a
        drafted = b if first == a else -1
        second = sample(0, t32[1 + first].copy(), index + 1, [], -1, drafted=drafted)[0]
        counts[first, second] += 1
    p = np.stack([exact(row, **usual) for row in target])
    assert excess(counts.sum(axis=1), p[0]) < LIMIT
    assert excess(counts.ravel(), (p[0][:, None] * p[1:]).ravel()) < LIMIT
    overlap = float(np.minimum(p[0], exact(draft[0], **usual)).sum())
    share, error = n_right / N_DRAWS, 4 * np.sqrt(0.25 / N_DRAWS)
    if rule == "standard":
        assert share == pytest.approx(overlap, abs=error), "min(1, p / q)"
    else:
        tv = 1 - overlap
        assert (1 - tv) / (1 + tv) - error < share < overlap + error
