"""exp, log and sums in plain float32 arithmetic whose bits every implementation reproduces.

Only ``+ - * /``, comparisons and bit operations, each rounded to float32 in the order written and
never fused. ``native/sample/numerics.h`` states the same operations. Both polynomials are weighted
minimax fits of our own: the functions are good to about one unit in the last place.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

LANES = 16
"""Partial sums of one tile; element i of a tile belongs to lane i % LANES."""
TILE = 1024
"""Elements of one tile."""
EXP_FLOOR = np.float32(-87.0)
"""Below this exp gives 0: no result is ever subnormal."""
LARGEST = np.finfo(np.float32).max

_LOG2_E = np.float32(1.4426950408889634)
_ROUND = np.float32(12582912.0)  # 1.5 * 2**23: adding it rounds to an integer
_LN2_HIGH = np.float32(0.693359375)
_LN2_LOW = np.float32(-2.12194440e-4)
_EXP = np.array([1.3814599e-3, 8.368717e-3, 4.166839e-2, 1.6666521e-1, 4.9999994e-1], np.float32)
_LOG_HIGH = (-7.634493e-2, 1.2761575e-1, -1.3160183e-1, 1.4201759e-1)
_LOG_LOW = (-1.6623357e-1, 2.0001227e-1, -2.500082e-1, 3.333333e-1)
_LOG = np.array([*_LOG_HIGH, *_LOG_LOW], np.float32)
_SQRT_HALF_BITS = np.int32(0x3F3504F3)


def exp(x: F32) -> F32:
    """exp(x) for x <= 0 (float32, -inf allowed, no NaN); 0 below ``EXP_FLOOR``."""
    low = np.maximum(x, EXP_FLOOR)
    shifted = low * _LOG2_E + _ROUND
    n = shifted - _ROUND
    r = low - n * _LN2_HIGH
    r = r - n * _LN2_LOW
    p = np.full_like(r, _EXP[0])
    for c in _EXP[1:]:
        p = p * r + c
    p = p * (r * r)
    p = p + r
    p = p + np.float32(1)
    power = (shifted.view(np.int32) << np.int32(23)) + np.int32(0x3F800000)
    return np.where(x < EXP_FLOOR, np.float32(0), p * power.view(np.float32))


def log(x: F32) -> F32:
    """log(x) for positive normal float32 x."""
    bits = x.view(np.int32)
    e = (bits - _SQRT_HALF_BITS) >> np.int32(23)
    f = (bits - (e << np.int32(23))).view(np.float32) - np.float32(1)
    z = f * f
    p = np.full_like(f, _LOG[0])
    for c in _LOG[1:]:
        p = p * f + c
    n = e.astype(np.float32)
    y = f * z
    y = y * p
    y = y + n * _LN2_LOW
    y = y - np.float32(0.5) * z
    y = f + y
    return y + n * _LN2_HIGH


def log_scalar(x: np.float32) -> np.float32:
    """``log`` of one number."""
    return np.float32(log(np.array([x], np.float32))[0])


def tile_sum(x: F32) -> np.float32:
    """Sum of float32 [n]: lanes of each tile in order, lanes as a halving tree, tiles in order."""
    padded = np.zeros(-(-x.size // TILE) * TILE, np.float32)
    padded[: x.size] = x
    chunks = padded.reshape(-1, TILE // LANES, LANES)
    lanes = np.zeros((chunks.shape[0], LANES), np.float32)
    for i in range(chunks.shape[1]):
        lanes = lanes + chunks[:, i]
    while lanes.shape[1] > 1:
        half = lanes.shape[1] // 2
        lanes = lanes[:, :half] + lanes[:, half:]
    total = np.float32(0)
    for partial in lanes[:, 0]:
        total = np.float32(total + partial)
    return total
