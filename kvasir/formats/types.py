"""Number formats of stored tensors: block layout, and a NumPy decoder of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvasir.core.errors import ModelError
from kvasir.formats import iquants, kquants, simple
from kvasir.formats.split import SUPER, Split, join
from kvasir.formats.split import Bytes as Bytes
from kvasir.formats.split import Floats as Floats

Splitter = Callable[[Bytes], Split]
"""Bytes of whole blocks [blocks, bytes of a block] -> their integers and scales."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a row is stored: every ``block`` consecutive elements take ``block_bytes`` bytes."""

    name: str
    block: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]
    """Bytes of whole blocks, 1-D -> f32, 1-D, one value per element."""
    ggml_type: int
    split: Callable[[Bytes], Split] | None = None
    """As ``decode``, before integers meet their scales; None where there are no integers."""

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


def _blocks(split: Splitter, block_bytes: int) -> Callable[[Bytes], Split]:
    return lambda data: split(data.reshape(-1, block_bytes))


def _plain(name: str, n_bytes: int, decode: Callable[[Bytes], Floats], ggml_type: int) -> Format:
    return Format(name, 1, n_bytes, decode, ggml_type)


def _block(name: str, block: int, block_bytes: int, split: Splitter, ggml_type: int) -> Format:
    parts = _blocks(split, block_bytes)
    return Format(name, block, block_bytes, lambda data: join(parts(data)), ggml_type, parts)


_SUPPORTED = (
    _plain("F32", 4, _decode_f32, 0),
    _plain("F16", 2, _decode_f16, 1),
    _plain("BF16", 2, _decode_bf16, 30),
    _block("Q4_0", 32, 18, simple.q4_0, 2),
    _block("Q4_1", 32, 20, simple.q4_1, 3),
    _block("Q5_0", 32, 22, simple.q5_0, 6),
    _block("Q5_1", 32, 24, simple.q5_1, 7),
    _block("Q8_0", 32, 34, simple.q8_0, 8),
    _block("Q2_K", SUPER, 84, kquants.q2_k, 10),
    _block("Q3_K", SUPER, 110, kquants.q3_k, 11),
    _block("Q4_K", SUPER, 144, kquants.q4_k, 12),
    _block("Q5_K", SUPER, 176, kquants.q5_k, 13),
    _block("Q6_K", SUPER, 210, kquants.q6_k, 14),
    _block("IQ4_NL", 32, 18, simple.iq4_nl, 20),
    _block("IQ4_XS", SUPER, 136, iquants.iq4_xs, 23),
    _block("IQ3_S", SUPER, 110, iquants.iq3_s, 21),
    _block("IQ3_XXS", SUPER, 98, iquants.iq3_xxs, 18),
    _block("IQ2_XXS", SUPER, 66, iquants.iq2_xxs, 16),
    _block("IQ2_XS", SUPER, 74, iquants.iq2_xs, 17),
    _block("IQ2_S", SUPER, 82, iquants.iq2_s, 22),
    _block("IQ1_S", SUPER, 50, iquants.iq1_s, 19),
    _block("IQ1_M", SUPER, 56, iquants.iq1_m, 29),
    _block("TQ1_0", SUPER, 54, simple.tq1_0, 34),
    _block("TQ2_0", SUPER, 66, simple.tq2_0, 35),
    _block("MXFP4", 32, 17, simple.mxfp4, 39),
)

FORMATS: dict[str, Format] = {format.name: format for format in _SUPPORTED}

GGML_TYPES: dict[int, str] = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 40: "NVFP4",
} | {format.ggml_type: format.name for format in _SUPPORTED}  # fmt: skip
"""Names of the type ids of GGUF files, supported or not."""


def unsupported(tensor: str, format: str) -> ModelError:
    """The error for a tensor of a known type that no code here can read."""
    return ModelError(
        f"tensor '{tensor}' has type {format}, which is not supported "
        f"(supported: {', '.join(FORMATS)}): use the model in one of these formats",
        code="unsupported_format",
    )
