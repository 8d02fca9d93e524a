"""Slopes of ALiBi (Press et al. 2022, "Train Short, Test Long")."""

from __future__ import annotations

from math import sqrt

import numpy as np

from kvasir.ir.program import FloatArray

SLOPES = "slopes"
"""The constant of a program that has them."""
_STEEPEST_LOG2 = 8
"""Of n heads, a power of two, head h (from 1 on) has the slope 2^(-8 h / n)."""


def alibi_slopes(n_heads: int) -> FloatArray:
    """Of each head, f32 [n_heads]. Where the heads are no power of two, those of the largest one
    below, then every other of twice as many, from the first on.

    Roots and products alone, each rounded as IEEE 754 says: the same bits on every machine."""
    n = 1 << (n_heads.bit_length() - 1)
    found = _powers(n) + _powers(2 * n)[::2][: n_heads - n]
    return np.array(found, np.float32)


def _powers(n: int) -> list[float]:
    ratio = 2.0**-_STEEPEST_LOG2
    for _ in range(n.bit_length() - 1):
        ratio = sqrt(ratio)
    powers = [ratio]
    for _ in range(n - 1):
        powers.append(powers[-1] * ratio)
    return powers
