"""Super-blocks of 256 whose words of 4 or 8 elements are entries of a codebook."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvasir.formats import grids
from kvasir.formats.simple import IQ4_VALUES
from kvasir.formats.split import Bytes, Floats, Split, bits_of, half, planes, words

_ONE_BIT_SCALE = 0.125
"""IQ1 words are -1, 0, 1 plus or minus 1/8: eighths are whole numbers."""


def iq4_xs(rows: Bytes) -> Split:
    """8 runs of 32; signed 6-bit scales, codes as in IQ4_NL."""
    high = words(rows[:, 2:4], "<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & np.uint16(3)
    low = planes(rows[:, 4:8], 4, 1)
    steps = (low | high.astype(np.uint8) << np.uint8(4)).view(np.int8) - np.int8(32)
    return Split(
        IQ4_VALUES[planes(rows[:, 8:], 4, 16)], half(rows[:, :2]) * steps.astype(np.float32)
    )


def iq2_xxs(rows: Bytes) -> Split:
    """8 runs of 32: four 8-bit words, then 4 x 7 bits of signs and 4 bits of scale."""
    pairs = words(rows[:, 2:], "<u4").reshape(len(rows), 8, 2)
    codes = np.ascontiguousarray(pairs[..., 0]).view(np.uint8)
    signs, scales = _signs_and_scale(pairs[..., 1])
    return Split(_signed(grids.IQ2_XXS, codes, signs), _odd(rows, scales, 0.125))


def iq2_xs(rows: Bytes) -> Split:
    """16 runs of 16: 9-bit words with 7 bits of signs."""
    pairs = words(rows[:, 2:66], "<u2")
    signs = _parity(pairs >> np.uint16(9))
    scales = planes(rows[:, 66:], 4, 1)
    return Split(_signed(grids.IQ2_XS, pairs & np.uint16(511), signs), _odd(rows, scales, 0.125))


def iq2_s(rows: Bytes) -> Split:
    """16 runs of 16: 10-bit words, a byte of signs for each."""
    codes = _extend(rows[:, 2:34], planes(rows[:, 66:74], 2, 1))
    scales = planes(rows[:, 74:], 4, 1)
    return Split(_signed(grids.IQ2_S, codes, rows[:, 34:66]), _odd(rows, scales, 0.125))


def iq3_xxs(rows: Bytes) -> Split:
    """8 runs of 32: eight 8-bit words of 4; signs and scales as in IQ2_XXS."""
    signs, scales = _signs_and_scale(words(rows[:, 66:], "<u4"))
    return Split(_signed(grids.IQ3_XXS, rows[:, 2:66], signs), _odd(rows, scales, 0.25))


def iq3_s(rows: Bytes) -> Split:
    """8 runs of 32: 9-bit words of 4, a byte of signs for two of them."""
    codes = _extend(rows[:, 2:66], bits_of(rows[:, 66:74]))
    scales = planes(rows[:, 106:], 4, 1)
    return Split(_signed(grids.IQ3_S, codes, rows[:, 74:106]), _odd(rows, scales, 1.0))


def iq1_s(rows: Bytes) -> Split:
    """8 runs of 32: 11-bit words; a run's top bits are 4 x 3 bits, 3 bits of scale, a sign."""
    top = words(rows[:, 34:], "<u2")
    high = top[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)
    codes = _extend(rows[:, 2:34], high.reshape(len(rows), -1))
    shift = np.repeat(np.where(top >> np.uint16(15), -1, 1), 4, axis=1)
    scales = top >> np.uint16(12) & np.uint16(7)
    return Split(_eighths(codes, shift), _odd(rows, scales, _ONE_BIT_SCALE))


def iq1_m(rows: Bytes) -> Split:
    """16 runs of 16: 11-bit words with a sign each; the f16 scale lies in four pieces."""
    top = planes(rows[:, 32:48], 4, 1)
    codes = _extend(rows[:, :32], top & np.uint8(7))
    shift = np.where(top >> np.uint8(3), -1, 1)
    pieces = words(rows[:, 48:], "<u2")
    scales = pieces[..., None] >> np.arange(0, 12, 3, dtype=np.uint16) & np.uint16(7)
    upper = pieces >> np.uint16(12) << np.arange(0, 16, 4, dtype=np.uint16)
    d = np.bitwise_or.reduce(upper, axis=1).astype("<u2").view(np.uint8).reshape(-1, 2)
    return Split(_eighths(codes, shift), _odd(d, scales.reshape(len(rows), -1), _ONE_BIT_SCALE))


def _odd(rows: Bytes, scales: NDArray[Any], factor: float) -> Floats:
    """d * factor * (2 scale + 1); d is the f16 that ``rows`` start with."""
    steps = scales.astype(np.float32) * np.float32(2) + np.float32(1)
    return half(rows[:, :2]) * np.float32(factor) * steps


def _extend(low: Bytes, high: NDArray[Any]) -> NDArray[np.uint16]:
    """8 bits of a code with its upper ones."""
    return low.astype(np.uint16) | high.astype(np.uint16) << np.uint16(8)


def _signs_and_scale(packed: NDArray[Any]) -> tuple[Bytes, NDArray[Any]]:
    """u32 [n, 8] -> sign bytes [n, 32], scales [n, 8]."""
    bits = packed.astype(np.uint32)
    signs = bits[..., None] >> np.arange(0, 28, 7, dtype=np.uint32) & np.uint32(127)
    return _parity(signs.reshape(len(bits), -1)), bits >> np.uint32(28)


def _parity(signs: NDArray[Any]) -> Bytes:
    """7 signs to 8: an even number of elements of a word is negative."""
    seven = signs.astype(np.uint8)
    odd = seven
    for step in (4, 2, 1):
        odd = odd ^ odd >> np.uint8(step)
    return seven | odd << np.uint8(7)


def _signed(grid: grids.Grid, codes: NDArray[Any], signs: Bytes) -> NDArray[np.int8]:
    """Words by code, with a bit of ``signs`` for each element."""
    values = grid[codes.astype(np.intp)].reshape(len(codes), -1)
    return values * (np.int8(1) - np.int8(2) * bits_of(signs).view(np.int8))


def _eighths(codes: NDArray[np.uint16], shift: NDArray[Any]) -> NDArray[np.int8]:
    """Ternary words by code, times 8, plus a shift of 1 or -1 for each word."""
    values = grids.IQ1_S[codes.astype(np.intp)] * np.int8(8) + shift.astype(np.int8)[..., None]
    return values.reshape(len(codes), -1)
