"""e2m1: four bits with a sign, numbers from 0 to 6 (OCP Microscaling Formats 1.0)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.target import Matrix

E2M1_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_MIDDLES = (E2M1_VALUES[1:] + E2M1_VALUES[:-1]) / np.float32(2)
_EVEN = np.array([True, False] * 4)[:-1]
"""Of each middle, whether the number below it has an even code, which ties go to."""


def e2m1_sizes(sizes: Matrix) -> NDArray[np.uint8]:
    """Codes of what has no sign, the nearest, ties to even; beyond 6 the largest."""
    codes = np.zeros(sizes.shape, np.uint8)
    for middle, is_even in zip(_MIDDLES, _EVEN, strict=True):
        codes += sizes > middle if is_even else sizes >= middle
    return codes


def signed(codes: NDArray[np.uint8], x: Matrix) -> NDArray[np.uint8]:
    """``codes`` with the signs of ``x``; of zero there is one."""
    return codes | (np.signbit(x) & (codes > 0)).astype(np.uint8) << np.uint8(3)


def pairs(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[n, k] -> [n, k / 2], the even ones low."""
    return codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
