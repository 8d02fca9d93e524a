"""Rounding to the nearest, into tensors of compressed-tensors.

Integers of b bits take scale = 2 max|w| / (2^b - 1) when they are symmetric, codes from -2^(b-1) to
2^(b-1) - 1; else scale = (max - min) / (2^b - 1), both moved to include 0, and the zero is
-min / scale, rounded. e4m3 takes scale = max|w| / 448. Scales of groups are bf16, rounded up,
of rows f32; codes are those of the scale as it is stored.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvasir.quantize.target import AnyRows, MadeTensor, Matrix, finite_scales

_F8_MAX = np.float32(448)
_F8_LEAST = np.float32(2.0**-6)
"""The least number of e4m3 that has all bits."""

Scheme = dict[str, object]


def _module(tensor: str) -> str:
    return tensor.removesuffix(".weight")


class Grid(NamedTuple):
    """Of the groups of rows [n, groups]: a weight is scale * (code - zero)."""

    bits: NDArray[np.uint32]
    """Scales, as bits of bf16."""
    zeros: Matrix

    @property
    def scales(self) -> Matrix:
        return _floats(self.bits)


class Groups(AnyRows, frozen=True):
    """``pack-quantized``: integers in words of 32 bits, a bf16 scale for each group of a row."""

    bits: int
    group: int
    is_symmetric: bool
    format: str = "pack-quantized"
    activations: Scheme | None = None

    @property
    def name(self) -> str:
        return self.said

    @property
    def said(self) -> str:
        """The form of codes and scales."""
        kind = "symmetric" if self.is_symmetric else "with zeros"
        return f"{self.bits} bits in groups of {self.group}, {kind}"

    @property
    def weights(self) -> Scheme:
        """As quantization_config says it."""
        said: Scheme = {"num_bits": self.bits, "type": "int", "symmetric": self.is_symmetric}
        return said | {"strategy": "group", "group_size": self.group, "dynamic": False}

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        n, k = shape
        module, groups, words = _module(tensor), k // self.group, k * self.bits // 32
        size = np.array([n, k], "<i8").tobytes()
        found: tuple[MadeTensor, ...] = (
            MadeTensor(f"{module}.weight_packed", "I32", (n, words), 4 * n * words),
            MadeTensor(f"{module}.weight_scale", "BF16", (n, groups), 2 * n * groups),
        )
        if not self.is_symmetric:
            rows = -(-n * self.bits // 32)
            zeros = MadeTensor(
                f"{module}.weight_zero_point", "I32", (rows, groups), 4 * rows * groups
            )
            found = (*found, zeros)
        return (*found, MadeTensor(f"{module}.weight_shape", "I64", (2,), 16, size))

    @property
    def top(self) -> int:
        """The largest code."""
        return (1 << self.bits) - 1

    def grid(self, rows: Matrix) -> Grid:
        """Scales and zeros as they are stored."""
        runs = rows.reshape(len(rows), -1, self.group)
        if self.is_symmetric:
            bits = _bf16(2 * np.abs(runs).max(axis=2) / np.float32(self.top))
            return Grid(bits, np.full(bits.shape, 1 << (self.bits - 1), np.float32))
        low = np.minimum(runs.min(axis=2), 0)
        bits = _bf16((np.maximum(runs.max(axis=2), 0) - low) / np.float32(self.top))
        return Grid(bits, np.rint(-low / _floats(bits)).clip(0, self.top))

    def codes(self, rows: Matrix, grid: Grid) -> Matrix:
        """The nearest, [rows, K]."""
        runs = rows.reshape(len(rows), -1, self.group)
        codes = np.rint(runs / grid.scales[..., None]) + grid.zeros[..., None]
        return np.asarray(codes.clip(0, self.top).reshape(len(rows), -1), np.float32)

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        grid = self.grid(rows)
        return self.packed(self.codes(rows, grid), grid)

    def restored(self, rows: Matrix) -> Matrix:
        """What is decoded of ``rows`` that were encoded."""
        grid = self.grid(rows)
        codes = self.codes(rows, grid).reshape(len(rows), -1, self.group)
        return ((codes - grid.zeros[..., None]) * grid.scales[..., None]).reshape(rows.shape)

    def packed(self, codes: Matrix, grid: Grid) -> tuple[bytes, ...]:
        """``codes``: [rows, K], whole numbers from 0 to ``top``."""
        found = (
            _words(codes.astype(np.uint32), self.bits).tobytes(),
            grid.bits.astype("<u2").tobytes(),
        )
        if self.is_symmetric:
            return found
        words = _words(np.ascontiguousarray(grid.zeros.astype(np.uint32).T), self.bits)
        return (*found, np.ascontiguousarray(words.T).tobytes())


class Int8Rows(AnyRows, frozen=True):
    """``int-quantized``, W8A8: int8, an f32 scale for each row."""

    format: str = "int-quantized"
    name: str = "int8, a scale for each output"

    @property
    def weights(self) -> Scheme:
        return _eight_bits("int", "channel", is_dynamic=False)

    @property
    def activations(self) -> Scheme | None:
        return _eight_bits("int", "token", is_dynamic=True)

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
    def activations(self) -> Scheme | None:
        return _eight_bits("float", "token", is_dynamic=True)

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return _scaled_rows(tensor, shape, "F8_E4M3")

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        scales = finite_scales(np.abs(rows).max(axis=1, keepdims=True) / _F8_MAX)
        return e4m3_codes(rows / scales).tobytes(), scales.astype("<f4").tobytes()


def _eight_bits(kind: str, strategy: str, *, is_dynamic: bool) -> Scheme:
    said: Scheme = {"num_bits": 8, "type": kind, "symmetric": True}
    return said | {"strategy": strategy, "dynamic": is_dynamic}


def _scaled_rows(tensor: str, shape: tuple[int, ...], dtype: str) -> tuple[MadeTensor, ...]:
    n, module = shape[0], _module(tensor)
    return (
        MadeTensor(f"{module}.weight", dtype, shape, math.prod(shape)),
        MadeTensor(f"{module}.weight_scale", "F32", (n, 1), 4 * n),
    )


def e4m3_codes(x: Matrix) -> NDArray[np.uint8]:
    """The nearest number of e4m3, ties to even; beyond 448 the largest. Its exponent and 3 bits lie
    as f32 has them, but below 2^-6, where steps stay 2^-9."""
    size = np.minimum(np.abs(x), _F8_MAX)
    bits = size.view(np.uint32)
    codes = (bits + np.uint32(0x7FFFF) + (bits >> 20 & np.uint32(1))) >> np.uint32(20)
    codes -= np.uint32((127 - 7) << 3)
    small = np.rint(size * np.float32(512)).astype(np.uint32)
    codes = np.where(size < _F8_LEAST, small, codes).astype(np.uint8)
    return np.asarray(codes | (np.signbit(x) & (codes > 0)).astype(np.uint8) << np.uint8(7))


def _bf16(scales: Matrix) -> NDArray[np.uint32]:
    """Bits of bf16, rounded up: the nearest may be 0.4 % smaller, half a code of 8 bits, by which
    the largest weights would be cut."""
    bits = finite_scales(scales).view(np.uint32)
    return (bits + np.uint32(0xFFFF)) >> np.uint32(16)


def _floats(bits: NDArray[np.uint32]) -> Matrix:
    return (bits << np.uint32(16)).view(np.float32)


def _words(values: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """[n, m] -> [n, m * bits / 32], the first in the lowest bits; zeros fill the last word."""
    per = 32 // bits
    values = np.pad(values, ((0, 0), (0, -values.shape[1] % per)))
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    runs = values.reshape(len(values), -1, per) << shifts
    return np.asarray(np.bitwise_or.reduce(runs, axis=2), "<u4")
