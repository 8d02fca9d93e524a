"""GGUF's formats of one scale (and one minimum) for 32 elements, as ggml rounds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.kblocks import Runs, affine_runs, centred_runs, importance, inverse
from kvasir.quantize.target import Matrix

BLOCK = 32
_TABLE = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32
)
"""Of IQ4_NL."""
_MIDDLES = (_TABLE[1:] + _TABLE[:-1]) / np.float32(2)
_TRIED = tuple(np.float32(x) for x in range(-7, 8))
"""By how many steps of the table's ends IQ4_NL's scales differ."""

Head = NDArray[np.float32]
Codes = NDArray[np.uint8]
Encoder = Callable[[Matrix, Matrix | None], tuple[Head, Codes]]


def _q8_0(x: Matrix, inputs: Matrix | None) -> tuple[Head, Codes]:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * inverse(d)
    whole = np.trunc(scaled)  # as C's roundf does: halves away from 0
    away = np.where(np.abs(scaled - whole) >= 0.5, np.copysign(np.float32(1), scaled), 0)
    return d, (whole + away).astype(np.int8).view(np.uint8)


def _q4_0(x: Matrix, inputs: Matrix | None) -> tuple[Head, Codes]:
    d, codes = _around(x, inputs, 8)
    return d, _nibbles(codes)


def _q5_0(x: Matrix, inputs: Matrix | None) -> tuple[Head, Codes]:
    d, codes = _around(x, inputs, 16)
    return d, np.concatenate([_fifth_bits(codes), _nibbles(codes)], axis=1)


def _q4_1(x: Matrix, inputs: Matrix | None) -> tuple[Head, Codes]:
    head, codes = _above(x, inputs, 15)
    return head, _nibbles(codes)


def _q5_1(x: Matrix, inputs: Matrix | None) -> tuple[Head, Codes]:
    head, codes = _above(x, inputs, 31)
    return head, np.concatenate([_fifth_bits(codes), _nibbles(codes)], axis=1)


def _around(x: Matrix, inputs: Matrix | None, half: int) -> tuple[Head, Codes]:
    """Codes from 0, which is -``half``: of the number farthest from 0, or with the mean squares of
    inputs of whatever the scale with the least error makes it."""
    if inputs is None:
        d = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1) / np.float32(-half)
    else:
        d = centred_runs(Runs(x[:, None], importance(x, inputs)[:, None]), -half)
    return d, _whole(np.trunc(x * inverse(d) + np.float32(half + 0.5)), 2 * half - 1)


def _above(x: Matrix, inputs: Matrix | None, top: int) -> tuple[Head, Codes]:
    """Codes from 0, which is the minimum, and the head of both."""
    if inputs is None:
        low = x.min(axis=1, keepdims=True)
        d = (x.max(axis=1, keepdims=True) - low) / np.float32(top)
    else:
        d, below = affine_runs(Runs(x[:, None], importance(x, inputs)[:, None]), top)
        low = -below
    codes = _whole(np.trunc((x - low) * inverse(d) + np.float32(0.5)), top)
    return np.concatenate([d, low], axis=1), codes


def _iq4_nl(x: Matrix, inputs: Matrix | None) -> tuple[Head, Codes]:
    """Entries of a table: of scales that bring the number farthest from 0 near either end, the one
    with the least error."""
    weight = np.square(x) if inputs is None else importance(x, inputs)
    farthest = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)
    best, most = np.zeros_like(farthest), np.zeros_like(farthest)
    for end in (_TABLE[0], _TABLE[-1]):
        for i in _TRIED:
            values = _TABLE[np.searchsorted(_MIDDLES, x * ((end + i) * inverse(farthest)))]
            products = (weight * values * x).sum(axis=1, keepdims=True)
            over = inverse((weight * values * values).sum(axis=1, keepdims=True))
            better = products * products * over > most
            best = np.where(better, products * over, best)
            most = np.where(better, products * products * over, most)
    return best, _nibbles(np.searchsorted(_MIDDLES, x * inverse(best)).astype(np.uint8))


def _whole(codes: Matrix, top: int) -> Codes:
    return codes.clip(0, top).astype(np.uint8)


def _nibbles(codes: Codes) -> Codes:
    """Of 32 codes the first half low, the second high."""
    low = codes & np.uint8(15)
    return low[:, : BLOCK // 2] | low[:, BLOCK // 2 :] << np.uint8(4)


def _fifth_bits(codes: Codes) -> Codes:
    return np.packbits(codes >> np.uint8(4), axis=1, bitorder="little")


ENCODERS: Mapping[str, Encoder] = MappingProxyType(
    {
        "Q8_0": _q8_0,
        "Q4_0": _q4_0,
        "Q4_1": _q4_1,
        "Q5_0": _q5_0,
        "Q5_1": _q5_1,
        "IQ4_NL": _iq4_nl,
    }
)
"""Blocks [n, 32] and the mean square of what each weight meets -> scales, minimums and codes."""
