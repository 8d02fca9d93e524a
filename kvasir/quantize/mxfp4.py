"""MXFP4 (OCP Microscaling Formats 1.0) as compressed-tensors has it: e2m1 with a power of two for
each 32 of a row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.compressed import compressed_config
from kvasir.quantize.e2m1 import E2M1_VALUES, e2m1_sizes, pairs, signed
from kvasir.quantize.target import AnyRows, MadeTensor, Matrix, Scheme

_GROUP = 32
_TOP_EXPONENT = 2
"""Of the largest number, 6."""
_BIAS, _MOST = 127, 254


class Mxfp4Rows(AnyRows, frozen=True):
    """``mxfp4-pack-quantized``."""

    format: str = "mxfp4-pack-quantized"
    name: str = "MXFP4"

    @property
    def weights(self) -> Scheme:
        said = {"num_bits": 4, "type": "float", "symmetric": True, "dynamic": False}
        more = {"strategy": "group", "group_size": _GROUP, "scale_dtype": "torch.uint8"}
        return {**said, **more}

    def config(self, kept: Sequence[str]) -> Scheme:
        return compressed_config(self.format, self.weights, None, kept)

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
        return pairs(codes).tobytes(), exponents.astype(np.uint8).tobytes()


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
    codes = e2m1_sizes(np.asarray(np.abs(runs) / steps, np.float32))
    values = np.copysign(E2M1_VALUES[codes] * steps, runs)
    return signed(codes, runs), values.astype(np.float32)
