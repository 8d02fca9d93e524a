"""Which tokens vLLM V1 may draw, from its definition alone; shares nothing with kvasir.sampling.

Its order (``vllm/v1/sample/sampler.py`` and ``ops/topk_topp_sampler.py``): allowed ids, bad words
(the last token of one whose others are the newest outputs is banned), stop ids below
``min_tokens`` are banned, logit bias, penalties (repetition, frequency, presence), greedy at
temperature 0, temperature, min-p, top-k, top-p. Logits are edited in float32 as there; filters sort
and add in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.core.params import TokenParams

EPSILON = 1e-6
"""Of the probability mass. A token whose place depends on less than this at the border of min-p or
top-p is possible and not sure; nothing else is uncertain but which of equal logits are kept."""

F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Support:
    """Masks over the vocabulary, ``sure`` within ``possible``; ``possible`` is empty when
    everything is banned."""

    possible: Mask
    sure: Mask
    weight: F64
    """Probabilities before the filters, the likeliest is 1."""


def support(
    logits: NDArray[np.float32],
    params: TokenParams,
    prompt: Sequence[int],
    output: Sequence[int],
) -> Support:
    """Of the token after ``output``."""
    x = edited(logits, params, prompt, output)
    allowed = x > -np.inf
    if not allowed.any():
        return Support(allowed, allowed, np.zeros(x.size))
    largest = x.max()
    if params.temperature == 0:
        best = x == largest
        return Support(best, best & (best.sum() == 1), best.astype(np.float64))
    with np.errstate(over="ignore", under="ignore"):
        weight = np.exp((x - largest) / params.temperature)
    weight[~allowed] = 0
    return _filtered(x, allowed, weight, params)


def edited(
    logits: NDArray[np.float32],
    params: TokenParams,
    prompt: Sequence[int],
    output: Sequence[int],
) -> F64:
    """Logits as the filters see them; each operation rounds to float32."""
    x = np.array(logits, np.float32)
    if params.allowed:
        bits = np.unpackbits(np.frombuffer(params.allowed, np.uint8), bitorder="little")
        x[bits[: x.size] == 0] = -np.inf
    for word in params.bad_words:
        prefix = list(word[:-1])
        if list(output)[len(output) - len(prefix) :] == prefix and len(prefix) <= len(output):
            x[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        x[list(params.stop_ids)] = -np.inf
    for token, bias in params.logit_bias:
        x[token] = x[token] + np.float32(bias)
    counts = np.bincount(np.array(output, np.int64), minlength=x.size).astype(np.float32)
    seen = counts > 0
    seen[list(prompt)] = True
    repetition = np.where(seen, np.float32(params.repetition_penalty), np.float32(1))
    x = np.where(x > 0, x / repetition, x * repetition)
    x = x - np.float32(params.frequency_penalty) * counts
    x = x - np.float32(params.presence_penalty) * (counts > 0).astype(np.float32)
    return x.astype(np.float64)


def _filtered(x: F64, allowed: Mask, weight: F64, params: TokenParams) -> Support:
    """min-p by a share of the likeliest, top-k by the k-th logit, top-p by the mass before a
    token."""
    slack = EPSILON * weight.sum()
    possible = allowed & (weight >= params.min_p - EPSILON)
    sure = allowed & ((weight >= params.min_p + EPSILON) | (weight == 1))
    if 0 < params.top_k < x.size:
        falling = np.sort(x)[::-1]
        kth, next_one = falling[params.top_k - 1], falling[params.top_k]
        possible &= x >= kth
        sure &= (x > kth) | (kth > next_one) & (x == kth)
    if params.top_p < 1:
        low = before(x, weight * sure)
        high = before(x, weight * possible) + _equals(x, weight * possible)
        n_low, n_high = (weight * sure).sum(), (weight * possible).sum()
        first = (x == x.max()) & ((x == x.max()).sum() == 1)
        possible &= (low < params.top_p * n_high + slack) | (x == x.max())
        sure &= (high < params.top_p * n_low - slack) | first
    return Support(possible, sure, weight)


def before(x: F64, weight: F64) -> F64:
    """The weight of all tokens with a larger logit, per token."""
    order = np.argsort(-x, kind="stable")
    reached = np.concatenate([[0.0], np.cumsum(weight[order])])
    return reached[np.searchsorted(-x[order], -x, side="left")]


def _equals(x: F64, weight: F64) -> F64:
    """The weight of all other tokens with the same logit, per token."""
    _, place = np.unique(x, return_inverse=True)
    return np.bincount(place, weight)[place] - weight
