"""GGUF's formats of one scale (and one minimum) for 32 elements, as ggml rounds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ModelError
from kvasir.formats.types import STORED
from kvasir.quantize.target import AnyRows, MadeTensor, Matrix

BLOCK = 32
_FILE_TYPES: Mapping[str, int] = MappingProxyType({"Q4_0": 2, "Q4_1": 3, "Q8_0": 7})
"""general.file_type of llama.cpp."""

Head = NDArray[np.float32]
Codes = NDArray[np.uint8]


class Blocks(AnyRows, frozen=True):
    """Blocks of ``format``, one of ``BLOCK_FORMATS``."""

    format: str

    @property
    def name(self) -> str:
        return f"gguf:{self.format}"

    @property
    def file_type(self) -> int:
        return _FILE_TYPES[self.format]

    def targets(self, tensor: str, shape: tuple[int, ...]) -> tuple[MadeTensor, ...]:
        return (MadeTensor(tensor, self.format, shape, STORED[self.format].n_bytes(shape)),)

    def encode(self, rows: Matrix) -> tuple[bytes, ...]:
        head, codes = _ENCODERS[self.format](rows.reshape(-1, BLOCK))
        with np.errstate(over="ignore"):
            halves = head.astype("<f2")
        if not np.isfinite(halves).all():
            raise ModelError(
                f"weights up to {np.abs(rows).max():g} need a scale beyond the largest f16 number, "
                f"which {self.format} has: take another method"
            )
        return (np.concatenate([halves.view(np.uint8), codes], axis=1).tobytes(),)


def _inverse(d: Head) -> Head:
    return np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)


def _q8_0(x: Matrix) -> tuple[Head, Codes]:
    d = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
    scaled = x * _inverse(d)
    whole = np.trunc(scaled)  # as C's roundf does: halves away from 0
    away = np.where(np.abs(scaled - whole) >= 0.5, np.copysign(np.float32(1), scaled), 0)
    return d, (whole + away).astype(np.int8).view(np.uint8)


def _q4_0(x: Matrix) -> tuple[Head, Codes]:
    """The number farthest from 0 becomes -8."""
    d = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1) / np.float32(-8)
    return d, _nibbles(np.trunc(x * _inverse(d) + np.float32(8.5)))


def _q4_1(x: Matrix) -> tuple[Head, Codes]:
    low = x.min(axis=1, keepdims=True)
    d = (x.max(axis=1, keepdims=True) - low) / np.float32(15)
    codes = np.trunc((x - low) * _inverse(d) + np.float32(0.5))
    return np.concatenate([d, low], axis=1), _nibbles(codes)


def _nibbles(codes: Matrix) -> Codes:
    """Of 32 codes the first half low, the second high."""
    found = codes.clip(0, 15).astype(np.uint8)
    return found[:, : BLOCK // 2] | found[:, BLOCK // 2 :] << np.uint8(4)


_ENCODERS: Mapping[str, Callable[[Matrix], tuple[Head, Codes]]] = MappingProxyType(
    {"Q8_0": _q8_0, "Q4_0": _q4_0, "Q4_1": _q4_1}
)
BLOCK_FORMATS = tuple(_ENCODERS)
