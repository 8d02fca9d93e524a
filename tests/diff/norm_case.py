"""Cases of the norms of rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from tests.diff.kernel_case import Case, Ranges, empty_q8, normal, quantize, rng_of
from tests.kv_codes import from_bf16

EPS = 2.0**-24
ROWS = 11
Norm = Callable[[_native.Kernels, _native.Rows, int, int], None]


def norm_case(K: int, to: str, weighted: bool) -> Case:
    rng = rng_of(K, weighted)
    x, w = normal(rng, ROWS, K) * 3, normal(rng, K) if weighted else None
    x64 = x.astype(np.float64)
    y = x64 / np.sqrt((x64**2).mean(1, keepdims=True) + 1e-5) * (w if weighted else 1.0)
    return _case(K, to, y, 0.0, lambda k, out, a, b: k.norm(x, w, 1e-5, out, a, b))


def layer_norm_case(K: int, to: str, biased: bool) -> Case:
    """Of rows far from zero."""
    rng = rng_of(K, biased, 7)
    x, w = normal(rng, ROWS, K) * 3 + 5, normal(rng, K)
    bias = normal(rng, K) if biased else None
    d = x - x.astype(np.float64).mean(1, keepdims=True)
    y = d / np.sqrt((d**2).mean(1, keepdims=True) + 1e-5) * w + (bias if biased else 0.0)
    return _case(K, to, y, 64 * EPS, lambda k, out, a, b: k.layer_norm(x, w, bias, 1e-5, out, a, b))


def _case(K: int, to: str, y: NDArray[np.float64], rounding: float, norm: Norm) -> Case:
    """``rounding``: absolute error of an element beside its own, relative one."""
    block = 32 if K % 64 else 64

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        q8 = empty_q8(ROWS, K, block) if to == "q8" else None
        out = np.zeros((ROWS, K), np.float32 if to == "f32" else np.uint16)
        for a, b in ranges:
            norm(k, q8.rows if q8 else _native.Rows(out), a, b)
        if q8:
            return q8.data, q8.scales, q8.sums
        return (out if to == "f32" else from_bf16(out),)

    def expected() -> tuple[tuple[NDArray[np.generic], NDArray[np.generic] | float], ...]:
        if to == "q8":
            q, scales, sums = quantize(y.astype(np.float32), block)
            return (q, 1), (scales, 8 * EPS * scales + rounding), (sums, 32)
        relative = 8 * EPS + (2.0**-8 if to == "bf16" else 0.0)
        return ((y, relative * np.abs(y) + rounding),)

    return Case(ROWS, run, expected)
