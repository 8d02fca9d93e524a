"""Cases of products of rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from tests.diff.kernel_case import Case, Ranges, normal, rng_of
from tests.diff.norm_case import ROWS


def mul_case(N: int, more: int) -> Case:
    """``more`` columns of the other rows are not read; below 0 there is one row for all."""
    rng = rng_of(N, more + 1)
    x, y = normal(rng, ROWS, N), normal(rng, 1 if more < 0 else ROWS, N + max(more, 0))

    def run(k: _native.Kernels, ranges: Ranges) -> tuple[NDArray[np.generic], ...]:
        out = np.zeros_like(x)
        for a, b in ranges:
            k.mul(x, y, out, a, b)
        return (out,)

    return Case(ROWS, run, lambda: ((x * y[:, :N], 0.0),))
