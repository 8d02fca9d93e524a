"""Cases of the kernels around experts: which, by what weight, into pairs and out of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu.codes import GROUP_SCORE_CODES, SCORE_CODES
from tests.diff.kernel_case import Case, Ranges, normal, rng_of
from tests.diff.norm_case import EPS, ROWS


class Routing(NamedTuple):
    """Of ``n_experts``; ``groups`` are all, and those chosen from."""

    n_experts: int
    top: int
    score: str = "softmax"
    groups: tuple[int, int] = (1, 1)
    group_score: str = "best"
    scale: float = 1.0
    has_bias: bool = False

    def __str__(self) -> str:
        return "-".join(str(x) for x in self).replace(" ", "")


def route_case(rules: Routing, normalize: bool) -> Case:
    n_experts, top, (n_groups, top_groups) = rules.n_experts, rules.top, rules.groups
    rng = rng_of(n_experts, top)
    # Rounded: many ties. A bias that is a multiple of 1/4 breaks few of them.
    logits = np.round(normal(rng, ROWS, n_experts) * 2, 1)
    bias = np.round(normal(rng, n_experts) * 2).astype(np.float32) / 4 if rules.has_bias else None
    codes = SCORE_CODES[rules.score], *rules.groups, GROUP_SCORE_CODES[rules.group_score]

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        ids, weights = np.zeros((ROWS, top), np.int32), np.zeros((ROWS, top), np.float32)
        for a, b in ranges:
            k.route(logits, bias, normalize, ids, weights, a, b, *codes, rules.scale)
        return ids, weights

    def expected() -> tuple[tuple[NDArray[np.generic], float], ...]:
        p = np.exp(logits.astype(np.float64))
        p = p / (p.sum(1, keepdims=True) if rules.score == "softmax" else 1 + p)
        by = logits if rules.score == "late_sigmoid" else p.astype(np.float32)
        choice = by + (0 if bias is None else bias)
        ids = np.array([chosen(row) for row in choice], np.int32)
        weights = np.take_along_axis(p, ids, 1)
        sums = weights.sum(1, keepdims=True) if normalize else 1
        return (ids, 0.0), (weights / sums * rules.scale, 8 * EPS * rules.scale)

    def chosen(choice: NDArray[np.float32]) -> list[int]:
        """By plain sorting of groups, then of experts."""
        groups = np.split(np.arange(n_experts), n_groups)
        n = 2 if rules.group_score == "best_two" else 1
        by_score = sorted(groups, key=lambda g: -sum(sorted(choice[g])[-n:]))
        kept = sorted(i for group in by_score[:top_groups] for i in group)
        return sorted(kept, key=lambda i: -choice[i])[:top]

    return Case(ROWS, run, expected)


def spread_case(N: int, top: int) -> Case:
    rng = rng_of(N, top)
    x, weights = normal(rng, ROWS, N), normal(rng, ROWS, top)
    row = rng.permutation(ROWS * top).astype(np.int32)

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros((ROWS * top, N), np.float32)
        for a, b in ranges:
            k.spread(x, row, weights, out, a, b)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        pairs = (x[:, None].astype(np.float64) * weights[..., None]).reshape(ROWS * top, N)
        out = np.empty_like(pairs)
        out[row] = pairs
        return ((out, EPS * np.abs(out)),)

    return Case(ROWS, run, expected)


def combine_case(N: int, top: int, mapped: bool) -> Case:
    rng = rng_of(N, top)
    y, weights = normal(rng, ROWS * top, N), normal(rng, ROWS, top)
    row = rng.permutation(ROWS * top).astype(np.int32) if mapped else None

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros((ROWS, N), np.float32)
        for a, b in ranges:
            k.combine(y, row, weights, out, a, b)
        return (out,)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic]], ...]:
        pairs = (y if row is None else y[row]).reshape(ROWS, top, N).astype(np.float64) * weights[
            ..., None
        ]
        return ((pairs.sum(1), 8 * EPS * np.abs(pairs).sum(1)),)

    return Case(ROWS, run, expected)
