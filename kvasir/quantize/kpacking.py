"""GGUF's super-blocks of 256, Q2_K to Q6_K, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.kblocks import Affine, Runs, affine, centred, importance
from kvasir.quantize.target import Matrix

Codes = NDArray[np.uint8]


def _planes(codes: Codes, bits: int, run: int) -> Codes:
    """[n, m] -> [n, m * bits / 8]: of each stretch of run * 8 / bits the first run lowest."""
    per = 8 // bits
    parts = codes.reshape(len(codes), -1, per, run)
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    return np.asarray(
        np.bitwise_or.reduce(parts << shifts, axis=2).reshape(len(codes), -1), np.uint8
    )


def _bytes(x: Matrix) -> Codes:
    return x.reshape(len(x), -1).astype(np.int16).astype(np.uint8)


def _halves(*values: Matrix) -> Codes:
    return np.concatenate(values, axis=1).astype("<f2").view(np.uint8)


def _runs(x: Matrix, weight: Matrix, size: int) -> Runs:
    shape = len(x), -1, size
    return Runs(x.reshape(shape), weight.reshape(shape))


def _q2_k(x: Matrix, inputs: Matrix | None) -> Codes:
    found = affine(_runs(x, importance(x, inputs), 16), 3, 15)
    both = _bytes(found.scales) | _bytes(found.lows) << np.uint8(4)
    return np.concatenate(
        [both, _planes(_bytes(found.codes), 2, 32), _halves(found.d, found.dmin)], axis=1
    )


def _q3_k(x: Matrix, inputs: Matrix | None) -> Codes:
    found = centred(_runs(x, np.abs(x) if inputs is None else inputs, 16), -4, -32)
    codes, scales = _bytes(found.codes + 4), _bytes(found.scales + 32)
    high = _planes(codes >> np.uint8(2), 1, 32)
    low = _planes(codes & np.uint8(3), 2, 32)
    packed = [_planes(scales & np.uint8(15), 4, 8), _planes(scales >> np.uint8(4), 2, 4)]
    return np.concatenate([high, low, *packed, _halves(found.d)], axis=1)


def _q4_k(x: Matrix, inputs: Matrix | None) -> Codes:
    found = affine(_runs(x, importance(x, inputs), 32), 15, 63)
    return np.concatenate([_head(found), _planes(_bytes(found.codes), 4, 32)], axis=1)


def _q5_k(x: Matrix, inputs: Matrix | None) -> Codes:
    found = affine(_runs(x, importance(x, inputs), 32), 31, 63)
    codes = _bytes(found.codes)
    high, low = _planes(codes >> np.uint8(4), 1, 32), _planes(codes & np.uint8(15), 4, 32)
    return np.concatenate([_head(found), high, low], axis=1)


def _q6_k(x: Matrix, inputs: Matrix | None) -> Codes:
    found = centred(_runs(x, np.abs(x) if inputs is None else inputs, 16), -32, -128)
    codes = _bytes(found.codes + 32)
    low, high = _planes(codes & np.uint8(15), 4, 64), _planes(codes >> np.uint8(4), 2, 32)
    return np.concatenate([low, high, _bytes(found.scales), _halves(found.d)], axis=1)


def _head(found: Affine) -> Codes:
    """Both scales, and 8 scales and lows of 6 bits in 12 bytes."""
    s, m = _bytes(found.scales), _bytes(found.lows)
    upper = np.uint8(0x30)
    first = [x[:, :4] | (x[:, 4:] & upper) << np.uint8(2) for x in (s, m)]
    rest = s[:, 4:] & np.uint8(15) | (m[:, 4:] & np.uint8(15)) << np.uint8(4)
    return np.concatenate([_halves(found.d, found.dmin), *first, rest], axis=1)


K_ENCODERS: Mapping[str, Callable[[Matrix, Matrix | None], Codes]] = MappingProxyType(
    {"Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k}
)
"""Super-blocks [n, 256] and the mean square of what each weight meets -> bytes of blocks."""
