"""Super-blocks of 256 with small integer scales: Q2_K to Q6_K."""

from __future__ import annotations

import numpy as np

from kvasir.formats.split import Bytes, Floats, Split, half, planes


def q2_k(rows: Bytes) -> Split:
    """16 runs of 16; 4-bit scales and minimums."""
    low, high = rows[:, :16] & np.uint8(15), rows[:, :16] >> np.uint8(4)
    d, dmin = half(rows[:, 80:82]), half(rows[:, 82:84])
    return Split(planes(rows[:, 16:80], 2, 32).view(np.int8), d * _f32(low), -(dmin * _f32(high)))


def q3_k(rows: Bytes) -> Split:
    """16 runs of 16; signed 6-bit scales. A high bit that is not set subtracts 4."""
    low = planes(rows[:, 32:96], 2, 32).view(np.int8)
    high = planes(rows[:, :32], 1, 32).view(np.int8)
    codes = rows[:, 96:108]
    scales = planes(codes[:, :8], 4, 8) | planes(codes[:, 8:], 2, 4) << np.uint8(4)
    steps = scales.view(np.int8) - np.int8(32)
    return Split(
        low - np.int8(4) * (np.int8(1) - high), half(rows[:, 108:]) * steps.astype(np.float32)
    )


def q4_k(rows: Bytes) -> Split:
    """8 runs of 32; 6-bit scales and minimums."""
    return Split(planes(rows[:, 16:], 4, 32).view(np.int8), *_scales_mins(rows))


def q5_k(rows: Bytes) -> Split:
    """Q4_K and a plane of fifth bits."""
    high = planes(rows[:, 16:48], 1, 32) << np.uint8(4)
    return Split((planes(rows[:, 48:], 4, 32) | high).view(np.int8), *_scales_mins(rows))


def q6_k(rows: Bytes) -> Split:
    """16 runs of 16; signed 8-bit scales."""
    values = planes(rows[:, :128], 4, 64) | planes(rows[:, 128:192], 2, 32) << np.uint8(4)
    steps = np.ascontiguousarray(rows[:, 192:208]).view(np.int8)
    return Split(values.view(np.int8) - np.int8(32), half(rows[:, 208:]) * steps.astype(np.float32))


def _scales_mins(rows: Bytes) -> tuple[Floats, Floats]:
    """Bytes 4 to 15: 6 bits of scales 0-3, of mins 0-3, then the low 4 bits of both for 4-7, whose
    upper 2 bits lie on top of the first eight."""
    s, m, both = rows[:, 4:8], rows[:, 8:12], rows[:, 12:16]
    upper = np.uint8(0x30)
    scales = [s & np.uint8(63), both & np.uint8(15) | (s >> np.uint8(2)) & upper]
    mins = [m & np.uint8(63), both >> np.uint8(4) | (m >> np.uint8(2)) & upper]
    d, dmin = half(rows[:, :2]), half(rows[:, 2:4])
    return d * _f32(np.concatenate(scales, axis=1)), -(dmin * _f32(np.concatenate(mins, axis=1)))


def _f32(values: Bytes) -> Floats:
    return values.astype(np.float32)
