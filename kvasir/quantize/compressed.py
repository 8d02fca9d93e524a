"""Rounding to the nearest, into tensors of compressed-tensors: eight bits, an f32 scale for a row.

Integers take scale = 2 max|w| / 255 and codes from -128 to 127, e4m3 scale = max|w| / 448; codes
are those of the scale as it is stored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.target import (
    AnyRows,
    MadeTensor,
    Matrix,
    Scheme,
    finite_scales,
)

F8_MAX = np.float32(448)
_F8_LEAST = np.float32(2.0**-6)
"""The least number of e4m3 that has all bits."""


def module_of(tensor: str) -> str:
    return tensor.removesuffix(".weight")


def compressed_config(
    format: str, weights: Scheme, activations: Scheme | None, kept: Sequence[str]
) -> Scheme:
    group = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": activations,
        "output_activations": None,
        "format": format,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
        "ignore": list(kept),
        "quantization_status": "compressed",
    }


class Int8Rows(AnyRows, frozen=True):
    """``int-quantized``, W8A8: int8, an f32 scale for each row."""

    format: str = "int-quantized"
    name: str = "int8, a scale for each output"

    @property
    def weights(self) -> Scheme:
        return _eight_bits("int", "channel", is_dynamic=False)

    @property
    def activations(self) -> Scheme:
        return _eight_bits("int", "token", is_dynamic=True)

    def config(self, kept: Sequence[str]) -> Scheme:
        return compressed_config(self.format, self.weights, self.activations, kept)

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return _scaled_rows(tensor, shape, "I8")

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        codes, scales = self._codes(rows)
        return codes.astype(np.int8).tobytes(), scales.astype("<f4").tobytes()

    def restored(self, rows: Matrix) -> Matrix:
        """What is decoded of ``rows`` that were encoded."""
        codes, scales = self._codes(rows)
        return codes * scales

    def _codes(self, rows: Matrix) -> tuple[Matrix, Matrix]:
        scales = finite_scales(2 * np.abs(rows).max(axis=1, keepdims=True) / np.float32(255))
        return np.rint(rows / scales).clip(-128, 127), scales


class Fp8Rows(AnyRows, frozen=True):
    """``float-quantized``: e4m3, an f32 scale for each row."""

    format: str = "float-quantized"
    name: str = "e4m3, a scale for each output"

    @property
    def weights(self) -> Scheme:
        return _eight_bits("float", "channel", is_dynamic=False)

    @property
    def activations(self) -> Scheme:
        return _eight_bits("float", "token", is_dynamic=True)

    def config(self, kept: Sequence[str]) -> Scheme:
        return compressed_config(self.format, self.weights, self.activations, kept)

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return _scaled_rows(tensor, shape, "F8_E4M3")

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        scales = finite_scales(np.abs(rows).max(axis=1, keepdims=True) / F8_MAX)
        return e4m3_codes(rows / scales).tobytes(), scales.astype("<f4").tobytes()


def _eight_bits(kind: str, strategy: str, *, is_dynamic: bool) -> Scheme:
    said = {"num_bits": 8, "type": kind, "symmetric": True}
    return {**said, "strategy": strategy, "dynamic": is_dynamic}


def _scaled_rows(tensor: str, shape: tuple[int, ...], dtype: str) -> tuple[MadeTensor, ...]:
    n, module = shape[0], module_of(tensor)
    return (
        MadeTensor(f"{module}.weight", dtype, shape, math.prod(shape)),
        MadeTensor(f"{module}.weight_scale", "F32", (n, 1), 4 * n),
    )


def e4m3_codes(x: Matrix) -> NDArray[np.uint8]:
    """The nearest number of e4m3, ties to even; beyond 448 the largest. Its exponent and 3 bits lie
    as f32 has them, but below 2^-6, where steps stay 2^-9."""
    size = np.minimum(np.abs(x), F8_MAX)
    bits = size.view(np.uint32)
    codes = (bits + np.uint32(0x7FFFF) + (bits >> 20 & np.uint32(1))) >> np.uint32(20)
    codes -= np.uint32((127 - 7) << 3)
    small = np.rint(size * np.float32(512)).astype(np.uint32)
    codes = np.where(size < _F8_LEAST, small, codes).astype(np.uint8)
    return np.asarray(codes | (np.signbit(x) & (codes > 0)).astype(np.uint8) << np.uint8(7))
