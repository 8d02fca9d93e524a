"""Linears of codes with a scale for 64 elements or more: docs/numerics.md's order, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.formats.decode import split
from kvasir.formats.types import FORMATS
from tests.diff.kernel_case import normal, pack_format, quantize, rng_of
from tests.diff.linear_case import ADD, SILU, Activations
from tests.format_blocks import random_blocks

Floats = NDArray[np.float32]
LEVELS = _native.levels(emulated=True)
OF_GROUPS = ("QG4_64", "QG4_128", "QG8_64", "QG8_128")
OF_OUTPUTS = ("Q4C", "Q8C")
ROWS = (1, 2, 5, 8, 15, 16, 37, 133)
N, K, SPAN = 40, 1280, 64


def fma(a: Floats, b: Floats, c: Floats) -> Floats:
    """a * b + c, rounded once: products are exact in f64, their sum is rounded to odd there."""
    product, other = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + other
    back = total - product
    error = (product - (total - back)) + (other - back)
    odd = np.where(
        (error != 0) & (total.view(np.int64) % 2 == 0),
        np.nextafter(total, np.copysign(np.inf, error)),
        total,
    )
    return odd.astype(np.float32)


def rows_of(name: str) -> NDArray[np.uint8]:
    """Rows of one weight; of a format with a scale for each output, blocks of a row agree."""
    rows = random_blocks(name, N * K // FORMATS[name].block).reshape(N, -1)
    if name in OF_OUTPUTS:
        blocks = rows.reshape(N, -1, FORMATS[name].block_bytes)
        blocks[:, :, :5] = np.roll(blocks[:, :1, :5], 1, axis=0)
    return rows


def by_numpy(name: str, rows: NDArray[np.uint8], x: Floats, block: int) -> Floats:
    parts = split(name, rows.reshape(-1))
    values = parts.values.reshape(N, K // SPAN, SPAN).astype(np.int64)
    scales = parts.scales.reshape(N, -1)
    scales = np.repeat(scales, (K // 32) // scales.shape[1], axis=1)[:, :: SPAN // 32]
    q, d, _ = quantize(x, block)
    dots = np.einsum("nsk,msk->msn", values, q.reshape(len(x), K // SPAN, SPAN).astype(np.int64))
    total = np.zeros((len(x), N), np.float32)
    for b in range(K // block):
        blk = np.zeros_like(total)
        for span in range(b * block // SPAN, (b + 1) * block // SPAN):
            dot = dots[:, span].astype(np.float32)
            blk = blk + dot if name in OF_OUTPUTS else fma(dot, scales[:, span], blk)
        total = fma(blk, d[:, b : b + 1], total)
    return total * scales[:, 0] if name in OF_OUTPUTS else total


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("name", OF_GROUPS + OF_OUTPUTS)
def test_order_of_operations(name: str, block: int) -> None:
    rows, layout = rows_of(name), name.lower()
    tiles = pack_format(layout, name, [rows], N, K)
    for M in ROWS:
        rng = rng_of(M)
        x, residual = normal(rng, M, K), normal(rng, M, N)
        expected = by_numpy(name, rows, x, block) + residual
        activations = Activations(layout, x, block)
        for level in LEVELS if M < 133 else LEVELS[1:]:
            out = np.full((M, N), np.nan, np.float32)
            kernels, code = _native.Kernels(level), LAYOUT_CODES[layout]
            kernels.linear(
                code, tiles, N, activations.rows, out, 0, 3, 0, M, ADD, SILU, residual, None, None
            )
            assert_array_equal(out, expected, err_msg=f"{level}, {M} rows")
