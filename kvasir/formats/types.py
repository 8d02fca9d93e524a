"""Number formats of stored tensors: block layout, and a NumPy decoder of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ModelError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Format:
    """How a row is stored: every ``block`` consecutive elements take ``block_bytes`` bytes."""

    name: str
    block: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]
    """Bytes of whole blocks, 1-D -> f32, 1-D, one value per element."""
    ggml_type: int

    def n_bytes(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor of ``shape`` (its last axis must be a multiple of ``block``)."""
        return math.prod(shape) // self.block * self.block_bytes


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor in a mapped file. ``data`` stays valid for as long as it is referenced."""

    name: str
    format: str
    """A key of ``FORMATS``."""
    shape: tuple[int, ...]
    """Outermost first: (N, K) for a linear of K inputs and N outputs; () for a scalar."""
    data: Bytes
    """Read-only view of the mapping, 1-D; its address may be unaligned in safetensors files."""

    def decode(self) -> Floats:
        """The values as a new f32 array of ``shape``."""
        return FORMATS[self.format].decode(self.data).reshape(self.shape)


def _decode_f32(data: Bytes) -> Floats:
    return data.view("<f4").astype(np.float32)


def _decode_f16(data: Bytes) -> Floats:
    return data.view("<f2").astype(np.float32)


def _decode_bf16(data: Bytes) -> Floats:
    return (data.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _half(column: Bytes) -> Floats:
    """Two little-endian bytes per row -> f32 [n, 1]."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def _nibbles(packed: Bytes) -> Floats:
    """[n, 16] bytes -> [n, 32]: low nibbles are elements 0 to 15, high nibbles 16 to 31."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def _decode_q8_0(data: Bytes) -> Floats:
    rows = data.reshape(-1, 34)
    values = np.ascontiguousarray(rows[:, 2:]).view(np.int8).astype(np.float32)
    return (values * _half(rows[:, :2])).reshape(-1)


def _decode_q4_0(data: Bytes) -> Floats:
    rows = data.reshape(-1, 18)
    return ((_nibbles(rows[:, 2:]) - 8) * _half(rows[:, :2])).reshape(-1)


def _decode_q4_1(data: Bytes) -> Floats:
    rows = data.reshape(-1, 20)
    return (_nibbles(rows[:, 4:]) * _half(rows[:, :2]) + _half(rows[:, 2:4])).reshape(-1)


_SUPPORTED = (
    Format("F32", 1, 4, _decode_f32, 0),
    Format("F16", 1, 2, _decode_f16, 1),
    Format("Q4_0", 32, 18, _decode_q4_0, 2),
    Format("Q4_1", 32, 20, _decode_q4_1, 3),
    Format("Q8_0", 32, 34, _decode_q8_0, 8),
    Format("BF16", 1, 2, _decode_bf16, 30),
)

FORMATS: dict[str, Format] = {format.name: format for format in _SUPPORTED}

GGML_TYPES: dict[int, str] = {
    6: "Q5_0", 7: "Q5_1", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K",
    15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
} | {format.ggml_type: format.name for format in _SUPPORTED}  # fmt: skip
"""Names of the type ids of GGUF files, supported or not."""


def unsupported(tensor: str, format: str) -> ModelError:
    """The error for a tensor of a known type that no code here can read."""
    return ModelError(
        f"tensor '{tensor}' has type {format}, which is not supported "
        f"(supported: {', '.join(FORMATS)}): use the model in one of these formats",
        code="unsupported_format",
    )
