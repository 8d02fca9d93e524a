"""Scales of GGUF's super-blocks of 256, chosen so that the error that weights give importance to is
least.

A run of weights starts from candidates of its scale; each rounds the run, and the best scale (and
minimum) of those codes follows by least squares. Scales of runs are rounded to a few bits of a
scale of the super-block, which least squares choose in turn, for the codes that came of it. All is
float32 in a fixed order, super-block by super-block.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.target import Matrix

_STEPS, _STEP = 16, 0.12
"""Candidates of a scale: so many, and by how many codes their spans differ."""
_ROUNDS = 3
"""By which scales of super-blocks and codes are brought together."""


class Runs(NamedTuple):
    """Super-blocks as runs, [n, runs, size] each."""

    x: Matrix
    weight: Matrix


class SuperScales(NamedTuple):
    """Of super-blocks, [n, 1], as f16 has them."""

    d: Matrix
    dmin: Matrix


class Affine(NamedTuple):
    """A weight is d * scale * code - dmin * low."""

    d: Matrix
    dmin: Matrix
    scales: Matrix
    lows: Matrix
    """[n, runs], whole."""
    codes: Matrix
    """[n, runs, size], whole."""

    @property
    def steps(self) -> Matrix:
        return self.d[..., None] * self.scales[..., None] * self.codes

    @property
    def lowered(self) -> Matrix:
        return (self.dmin * self.lows)[..., None]


class Centred(NamedTuple):
    """A weight is d * scale * code."""

    d: Matrix
    scales: Matrix
    codes: Matrix

    @property
    def steps(self) -> Matrix:
        return self.d[..., None] * self.scales[..., None] * self.codes


def importance(x: Matrix, inputs: Matrix | None) -> Matrix:
    """[n, 256]: of weights with minimums, as llama.cpp's quantizer has it: the mean square of their
    inputs times sqrt(2 mean(x^2) + x^2), or without ``inputs`` the root mean square plus |x|."""
    squares = np.square(x)
    if inputs is not None:
        mean = squares.mean(axis=1, keepdims=True)
        return np.asarray(inputs * np.sqrt(2 * mean + squares), np.float32)
    runs = np.sqrt(squares.reshape(len(x), -1, 32).mean(axis=2))
    return np.asarray(np.repeat(runs, 32, axis=1) + np.abs(x), np.float32)


def affine(runs: Runs, top: int, scale_top: int) -> Affine:
    """Codes from 0 to ``top``, scales and lows to ``scale_top``."""
    scales, lows = affine_runs(runs, top)
    tops = (x.max(axis=1, keepdims=True) / np.float32(scale_top) for x in (scales, lows))
    heads = SuperScales(*map(half, tops))
    best = _affine_codes(runs, scales, lows, heads, top, scale_top)
    least = _error(runs, best.steps, best.lowered)
    for _ in range(_ROUNDS):
        heads = _fitted(runs, best)
        found = _affine_codes(runs, scales, lows, heads, top, scale_top)
        error = _error(runs, found.steps, found.lowered)
        better = error < least
        best = Affine(
            *(_chosen(better, one, other) for one, other in zip(found, best, strict=True))
        )
        least = np.where(better, error, least)
    return best


def _affine_codes(
    runs: Runs, scales: Matrix, lows: Matrix, heads: SuperScales, top: int, scale_top: int
) -> Affine:
    of_scales = whole(scales * inverse(heads.d), scale_top)
    of_lows = whole(lows * inverse(heads.dmin), scale_top)
    step, low = (heads.d * of_scales)[..., None], (heads.dmin * of_lows)[..., None]
    codes = whole((runs.x + low) * inverse(step), top)
    return Affine(*heads, of_scales, of_lows, codes)


def affine_runs(runs: Runs, top: int) -> tuple[Matrix, Matrix]:
    """The best scale and low >= 0 of each run, x near scale * code - low."""
    x, sums = runs.x, _LeastSquares(runs)
    low = np.maximum(-x.min(axis=2), 0)
    span = x.max(axis=2) + low
    best_scale, best_low = span / np.float32(top), low
    least = np.full(span.shape, np.inf, np.float32)
    for i in range(_STEPS + _ROUNDS):
        if i < _STEPS:
            factor = np.float32(top - 1 + _STEP * i) * inverse(span)
            codes = whole((x + low[..., None]) * factor[..., None], top)
        else:
            codes = whole((x + best_low[..., None]) * inverse(best_scale)[..., None], top)
        scale, lowered, error = sums.fit(codes)
        better = error < least
        best_scale = np.where(better, scale, best_scale)
        best_low = np.where(better, lowered, best_low)
        least = np.where(better, error, least)
    return best_scale, best_low


class _LeastSquares:
    """Of runs, for least squares with codes."""

    def __init__(self, runs: Runs) -> None:
        self._weight, self._weighted = runs.weight, runs.weight * runs.x
        self._w = runs.weight.sum(axis=2)
        self._wx = self._weighted.sum(axis=2)
        self._wxx = (self._weighted * runs.x).sum(axis=2)

    def fit(self, codes: Matrix) -> tuple[Matrix, Matrix, Matrix]:
        """Scale, low >= 0, and the error that is left; infinite where they fit nothing."""
        wc = (self._weight * codes).sum(axis=2)
        wcc = np.einsum("nrk,nrk,nrk->nr", self._weight, codes, codes)
        wcx = (self._weighted * codes).sum(axis=2)
        det = self._w * wcc - wc * wc
        scale = (self._w * wcx - wc * self._wx) * inverse(det)
        low = (wc * wcx - wcc * self._wx) * inverse(det)
        alone = (low < 0) | (det <= 0)
        scale = np.where(alone, wcx * inverse(wcc), scale)
        low = np.where(alone, np.float32(0), low)
        error = (
            self._wxx
            - scale * (2 * wcx - scale * wcc)
            + low * (2 * self._wx + low * self._w - 2 * scale * wc)
        )
        is_known = (scale > 0) & np.isfinite(error)  # of codes that are all 0 nothing is
        return scale, low, np.where(is_known, error, np.float32(np.inf))


def _fitted(runs: Runs, found: Affine) -> SuperScales:
    """By least squares, for the scales, lows and codes of ``found``."""
    x, weight = runs
    steps, lows = found.scales[..., None] * found.codes, found.lows
    a = np.einsum("nrk,nrk,nrk->n", weight, steps, steps)[:, None]
    b = np.einsum("nrk,nrk,nr->n", weight, steps, lows)[:, None]
    c = np.einsum("nrk,nr,nr->n", weight, lows, lows)[:, None]
    ax = np.einsum("nrk,nrk,nrk->n", weight, steps, x)[:, None]
    cx = np.einsum("nrk,nr,nrk->n", weight, lows, x)[:, None]
    over = inverse(a * c - b * b)
    d, dmin = (c * ax - b * cx) * over, (b * ax - a * cx) * over
    usable = (d > 0) & (dmin > 0)
    return SuperScales(half(np.where(usable, d, found.d)), half(np.where(usable, dmin, found.dmin)))


def _error(runs: Runs, steps: Matrix, lowered: Matrix | float = 0.0) -> Matrix:
    """Of super-blocks, [n]."""
    left = steps - lowered - runs.x
    return np.asarray(np.einsum("nrk,nrk,nrk->n", runs.weight, left, left), np.float32)


def _chosen(better: NDArray[np.bool_], one: Matrix, other: Matrix) -> Matrix:
    return np.where(better.reshape(-1, *(1,) * (one.ndim - 1)), one, other)


def centred(runs: Runs, least: int, scale_least: int) -> Centred:
    """Codes from ``least`` to -``least`` - 1, scales from ``scale_least`` likewise."""
    scales = centred_runs(runs, least)
    farthest = np.take_along_axis(scales, np.abs(scales).argmax(axis=1)[:, None], axis=1)
    best = _centred_codes(
        runs, scales, half(farthest / np.float32(scale_least)), least, scale_least
    )
    least_error = _error(runs, best.steps)
    for _ in range(_ROUNDS):
        steps = best.scales[..., None] * best.codes
        squares = np.einsum("nrk,nrk,nrk->n", runs.weight, steps, steps)[:, None]
        products = np.einsum("nrk,nrk,nrk->n", runs.weight, steps, runs.x)[:, None]
        d = half(np.where(squares > 0, products * inverse(squares), best.d))
        found = _centred_codes(runs, scales, d, least, scale_least)
        error = _error(runs, found.steps)
        better = error < least_error
        best = Centred(
            *(_chosen(better, one, other) for one, other in zip(found, best, strict=True))
        )
        least_error = np.where(better, error, least_error)
    return best


def _centred_codes(runs: Runs, scales: Matrix, d: Matrix, least: int, scale_least: int) -> Centred:
    rounded = np.rint(scales * inverse(d)).clip(scale_least, -scale_least - 1)
    codes = np.rint(runs.x * inverse((d * rounded)[..., None])).clip(least, -least - 1)
    return Centred(d, rounded, codes)


def centred_runs(runs: Runs, least: int) -> Matrix:
    """The best scale of each run, of either sign."""
    x, weight = runs
    farthest = np.take_along_axis(x, np.abs(x).argmax(axis=2)[..., None], axis=2)[..., 0]
    weighted = weight * x
    best, most = np.zeros_like(farthest), np.zeros_like(farthest)
    for i in range(_STEPS):
        factor = np.float32(least - 0.15 * (i - _STEPS // 2)) * inverse(farthest)
        codes = np.rint(x * factor[..., None]).clip(least, -least - 1)
        wcx = (weighted * codes).sum(axis=2)
        wcc = np.einsum("nrk,nrk,nrk->nr", weight, codes, codes)
        gain = wcx * wcx * inverse(wcc)
        better = gain > most
        best = np.where(better, wcx * inverse(wcc), best)
        most = np.where(better, gain, most)
    return best


def inverse(x: Matrix) -> Matrix:
    return np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)


def whole(x: Matrix, top: int) -> Matrix:
    return np.rint(x).clip(0, top)


def half(x: Matrix) -> Matrix:
    """As f16 has it. What is beyond it becomes infinite."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(np.float32)
