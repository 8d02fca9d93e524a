"""MXFP4 (OCP Microscaling Formats 1.0) as compressed-tensors has it: e2m1 with a power of two for
each 32 of a row."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.compressed import Scheme
from kvasir.quantize.target import AnyRows, MadeTensor, Matrix

_GROUP = 32
_VALUES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
_MIDDLES = (_VALUES[1:] + _VALUES[:-1]) / np.float32(2)
_EVEN = np.array([True, False] * 4)[:-1]
"""Of each middle, whether the number below it has an even code, which ties go to."""
_TOP_EXPONENT = 2
"""Of the largest number, 6."""
_BIAS, _MOST = 127, 254


class Mxfp4Rows(AnyRows, frozen=True):
    """``mxfp4-pack-quantized``."""

    format: str = "mxfp4-pack-quantized"
    name: str = "MXFP4"

    @property
    def weights(self) -> Scheme:
        said: Scheme = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
        return said | {"strategy": "group", "group_size": _GROUP, "scale_dtype": "torch.uint8"}

    @property
    def activations(self) -> Scheme | None:
        return None

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        n, k = shape
        module = tensor.removesuffix(".weight")
        return (
            MadeTensor(f"{module}.weight_packed", "U8", (n, k // 2), n * k // 2),
            MadeTensor(f"{module}.weight_scale", "U8", (n, k // _GROUP), n * k // _GROUP),
        )

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        runs = rows.reshape(-1, _GROUP)
        codes, exponents = _nearest(runs)
        packed = codes[:, ::2] | codes[:, 1::2] << np.uint8(4)
        return packed.tobytes(), exponents.astype(np.uint8).tobytes()


def _nearest(runs: Matrix) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Codes, and biased exponents: of the largest number's exponent and the one above, by which
    nothing is cut, that with the smaller error."""
    peaks = np.abs(runs).max(axis=1, keepdims=True)
    low = np.frexp(peaks)[1] - 1 - _TOP_EXPONENT + _BIAS
    found = [_coded(runs, (low + i).clip(0, _MOST)) for i in range(2)]
    errors = [np.square(values - runs).sum(axis=1, keepdims=True) for _, values in found]
    higher = errors[1] < errors[0]
    codes = np.where(higher, found[1][0], found[0][0])
    return codes, (low + higher).clip(0, _MOST).astype(np.int64)


def _coded(runs: Matrix, exponents: NDArray[np.int64]) -> tuple[NDArray[np.uint8], Matrix]:
    """Codes with their sign highest, and what they are."""
    steps = np.ldexp(np.float32(1), exponents - _BIAS).astype(np.float32)
    sizes = np.abs(runs) / steps
    codes = np.zeros(runs.shape, np.uint8)
    for middle, is_even in zip(_MIDDLES, _EVEN, strict=True):
        codes += sizes > middle if is_even else sizes >= middle
    values = np.copysign(_VALUES[codes] * steps, runs)
    sign = (np.signbit(runs) & (codes > 0)).astype(np.uint8) << np.uint8(3)
    return codes | sign, values.astype(np.float32)
