"""Formats of blocks of 32, and the ternary ones: one scale (and one minimum) for each block."""

from __future__ import annotations

import numpy as np

from kvasir.formats.split import Bytes, Floats, Split, bits_of, half, planes

IQ4_VALUES = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""Quantiles of what weights look like: 4-bit codes of IQ4_NL and IQ4_XS."""
FP4_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
"""Twice the values of e2m1."""
_POWERS = np.array([1, 3, 9, 27, 81], np.uint8)


def q4_0(rows: Bytes) -> Split:
    return Split(_signed(planes(rows[:, 2:], 4, 16), 8), half(rows[:, :2]))


def q4_1(rows: Bytes) -> Split:
    return Split(_signed(planes(rows[:, 4:], 4, 16), 0), half(rows[:, :2]), half(rows[:, 2:4]))


def q5_0(rows: Bytes) -> Split:
    return Split(_signed(_five(rows[:, 2:6], rows[:, 6:]), 16), half(rows[:, :2]))


def q5_1(rows: Bytes) -> Split:
    values = _five(rows[:, 4:8], rows[:, 8:])
    return Split(_signed(values, 0), half(rows[:, :2]), half(rows[:, 2:4]))


def q8_0(rows: Bytes) -> Split:
    return Split(np.ascontiguousarray(rows[:, 2:]).view(np.int8), half(rows[:, :2]))


def iq4_nl(rows: Bytes) -> Split:
    return Split(IQ4_VALUES[planes(rows[:, 2:], 4, 16)], half(rows[:, :2]))


def mxfp4(rows: Bytes) -> Split:
    """OCP Microscaling Formats 1.0: a power of two for each block."""
    return Split(FP4_VALUES[planes(rows[:, 1:], 4, 16)], _half_power(rows[:, :1]))


def tq1_0(rows: Bytes) -> Split:
    """Five base-3 digits a byte, as a fraction of 256; the digit is what a product carries out."""
    runs = (rows[:, :32], _POWERS), (rows[:, 32:48], _POWERS), (rows[:, 48:52], _POWERS[:4])
    digits = [(data[:, None, :] * powers[:, None]).reshape(len(rows), -1) for data, powers in runs]
    carried = (np.concatenate(digits, axis=1).astype(np.uint16) * np.uint16(3)) >> np.uint16(8)
    return Split(_signed(carried.astype(np.uint8), 1), half(rows[:, 52:]))


def tq2_0(rows: Bytes) -> Split:
    return Split(_signed(planes(rows[:, :64], 2, 32), 1), half(rows[:, 64:]))


def _signed(values: Bytes, zero: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
    return values.view(np.int8) - np.int8(zero)


def _five(high: Bytes, low: Bytes) -> Bytes:
    return planes(low, 4, 16) | bits_of(high) << np.uint8(4)


def _half_power(exponent: Bytes) -> Floats:
    """2^(e - 128): half of what e8m0 means, as the values are doubled."""
    e = exponent.astype(np.uint32)
    bits = np.where(e < 2, np.uint32(0x00200000) << e, (e - np.uint32(1)) << np.uint32(23))
    return bits.astype(np.uint32).view(np.float32)
