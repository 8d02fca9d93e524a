"""Compact layouts against 8-bit layouts with the same integers and scales: equal, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from numpy.typing import NDArray

from kvasir import _native
from kvasir.exec.cpu.codes import LAYOUT_CODES
from kvasir.exec.cpu.formats import LAYOUT_OF_FORMAT
from kvasir.formats.decode import split
from kvasir.formats.types import FORMATS
from tests.diff.kernel_case import normal, pack_format, rng_of
from tests.diff.linear_case import ADD, SILU, Activations
from tests.format_blocks import HALVES, random_blocks

Bytes = NDArray[np.uint8]
FIRST = LAYOUT_CODES["q2k"]
LAST = LAYOUT_CODES["nvfp4d"]
COMPACT = [name for name, used in LAYOUT_OF_FORMAT.items() if FIRST <= LAYOUT_CODES[used] <= LAST]
TWO_RUNS = {
    **dict.fromkeys(("Q3_K", "IQ2_XS", "IQ2_S", "IQ1_M", "NVFP4M", "NVFP4D"), "q8s"),
    "Q2_K": "q8m",
}
"""Formats with scales for 16 elements, and the layout that keeps such as 8-bit integers."""
GROUPED = ("QG4_64", "QG4_128", "QG8_64", "QG8_128", "Q4C", "Q8C")
"""Formats whose activation blocks of 64 meet one dot: their order is test_grouped.py's."""
ROWS = (1, 2, 5, 15, 16, 37, 133)
N, K = 40, 1280


def blocks_of(name: str) -> Bytes:
    """Rows whose scales are f16 numbers, of d and a small integer: d is a power of two."""
    rows = random_blocks(name, N * K // FORMATS[name].block).reshape(-1, FORMATS[name].block_bytes)
    for at in HALVES.get(name, ()):
        rows[:, at], rows[:, at + 1] = 0, rows[:, at + 1] & 0xFC
    return rows.reshape(N, -1)


def as_q8_0(name: str, rows: Bytes) -> Bytes:
    """The same weights as blocks of Q8_0."""
    parts = split(name, rows.reshape(-1))
    values = parts.values.reshape(-1, 32).view(np.uint8)
    scales = np.repeat(parts.scales.reshape(-1), len(values) // parts.scales.size)
    halves = scales.astype("<f2")
    assert_array_equal(halves.astype(np.float32), scales)
    return np.concatenate([halves[:, None].view(np.uint8), values], axis=1).reshape(N, -1)


def wide(name: str, rows: Bytes) -> tuple[str, Bytes]:
    if name in TWO_RUNS:
        return TWO_RUNS[name], pack_format(TWO_RUNS[name], name, [rows], N, K)
    return "q8", pack_format("q8", "Q8_0", [as_q8_0(name, rows)], N, K)


@pytest.mark.parametrize("level", _native.levels())
@pytest.mark.parametrize("name", COMPACT)
def test_equals_the_8_bit_layout(name: str, level: str) -> None:
    rows, layout = blocks_of(name), LAYOUT_OF_FORMAT[name]
    block = 32 if name in GROUPED else 64
    wide_layout, wide_tiles = wide(name, rows)
    both = (layout, pack_format(layout, name, [rows], N, K)), (wide_layout, wide_tiles)
    kernels = _native.Kernels(level)
    for M in ROWS if level != "scalar" else (1, 5, 17):
        rng = rng_of(M)
        x, residual = Activations(layout, normal(rng, M, K), block), normal(rng, M, N)
        results = []
        for used, tiles in both:
            out = np.full((M, N), np.nan, np.float32)
            code = LAYOUT_CODES[used]
            kernels.linear(code, tiles, N, x.rows, out, 0, 3, 0, M, ADD, SILU, residual, None, None)
            results.append(out)
        assert_array_equal(*results)


def test_wide_activation_blocks_are_refused() -> None:
    tiles = pack_format("q2k", "Q2_K", [blocks_of("Q2_K")], N, K)
    x, out = Activations("q2k", normal(rng_of(1), 1, K), 640), np.zeros((1, N), np.float32)
    with pytest.raises(ValueError, match="longer than a compact layout takes"):
        _native.Kernels("scalar").linear(LAYOUT_CODES["q2k"], tiles, N, x.rows, out, 0, 3, 0, 1)
