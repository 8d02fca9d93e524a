"""What block formats share: a row as small integers with a scale and a minimum per run of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Split(NamedTuple):
    """value = scale * integer (+ min), both f32; the product is exact, the sum rounds once.

    ``values`` int8 [blocks, elements]; ``scales`` and ``mins`` f32 [blocks, runs], a run being
    elements / runs consecutive elements.
    """

    values: NDArray[np.int8]
    scales: Floats
    mins: Floats | None = None


def join(parts: Split) -> Floats:
    """The values, 1-D."""
    blocks, runs = parts.scales.shape
    x = parts.values.reshape(blocks, runs, -1).astype(np.float32) * parts.scales[..., None]
    if parts.mins is not None:
        x += parts.mins[..., None]
    return x.reshape(-1)


def half(column: Bytes) -> Floats:
    """Little-endian f16 bytes [n, 2 m] -> f32 [n, m]."""
    return np.ascontiguousarray(column).view("<f2").astype(np.float32)


def words(column: Bytes, dtype: str) -> NDArray[Any]:
    """Bytes [n, ...] as little-endian integers of ``dtype``."""
    return np.ascontiguousarray(column).view(dtype)


def planes(packed: Bytes, bits: int, run: int) -> Bytes:
    """[n, b] -> [n, b * 8 / bits]: each ``run`` bytes hold 8 / bits runs, low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    parts = packed.reshape(len(packed), -1, 1, run) >> shifts[:, None]
    return (parts & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def bits_of(packed: Bytes) -> Bytes:
    """[n, bytes] -> [n, 8 bytes]: the bits of each byte, low first."""
    return np.unpackbits(np.ascontiguousarray(packed), axis=-1, bitorder="little")
