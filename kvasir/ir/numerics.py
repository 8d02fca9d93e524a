"""The arithmetic that ops share: bf16 rounding and int8 activations, as NumPy specifications."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

GROUP = 32
MAX_ACT_BLOCK = 64
"""Perplexity 0.5 % above float32 (with 256: 1.4 %) for 6 % less speed than 128, on 15,000 scored
tokens: bench/results/activation_block.md. A scale per 32 would cost 15 % more."""


class Q8(NamedTuple):
    """int8 [rows, K], f32 scales [rows, K / block], int32 sums [rows, K / 32, 2] of the int8 values
    of each group of 32 and of its first 16."""

    data: NDArray[np.int8]
    scales: NDArray[np.float32]
    sums: NDArray[np.int32]


def act_block(k: int, limit: int = MAX_ACT_BLOCK) -> int:
    """Activations per scale: the largest divisor of ``k`` <= ``limit`` that is a multiple of 32.

    Raises ValueError when ``k`` is no multiple of 32.
    """
    for block in range(limit - limit % GROUP, 0, -GROUP):
        if k % block == 0:
            return block
    raise ValueError(
        f"rows of {k} elements cannot be quantized: not a multiple of {GROUP} (limit {limit})"
    )


def round_bf16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """Nearest bf16 (ties to even) of each finite element, as f32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return np.where(np.isfinite(x), rounded.view(np.float32), x)


def quantize_rows(x: NDArray[np.float32], block: int) -> Q8:
    """f32 [rows, K] to int8 with one scale per ``block`` elements; halves round to even."""
    rows, k = x.shape
    blocks = x.reshape(rows, k // block, block)
    amax = np.abs(blocks).max(axis=2)
    scales = (amax / np.float32(127)).astype(np.float32)
    inverse = np.divide(np.float32(127), amax, out=np.zeros_like(amax), where=amax > 0)
    data = np.rint(blocks * inverse[..., None]).astype(np.int8).reshape(rows, k)
    groups = data.reshape(rows, k // GROUP, GROUP)
    sums = [groups[..., :n].sum(axis=2, dtype=np.int32) for n in (GROUP, GROUP // 2)]
    return Q8(data, scales, np.stack(sums, axis=2))


def dequantize_rows(q: Q8) -> NDArray[np.float64]:
    """The values that the integer path computes with, exact in float64."""
    block = q.data.shape[1] // q.scales.shape[1]
    return q.data.astype(np.float64) * np.repeat(q.scales, block, axis=1).astype(np.float64)


def wide(x: NDArray[np.float32] | Q8) -> NDArray[np.float64]:
    """Rows of any activation type as float64."""
    return dequantize_rows(x) if isinstance(x, Q8) else x.astype(np.float64)
