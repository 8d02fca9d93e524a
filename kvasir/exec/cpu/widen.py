"""Rows of any integer format, brought to 8-bit integers with f32 scales (q8s, q8m): for matrices of
several formats that are computed together, and for formats without a layout of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.formats.split import Split

Bytes = NDArray[np.uint8]
TILE = 16
GROUP = 32
RUN = 16
"""Elements that share a scale."""


def widened_tiles(parts: Split, n: int, k: int, mins: bool) -> Bytes:
    """Column tiles [ceil(n / 16), bytes of a tile] of ``n`` rows of ``k`` elements (layouts.h)."""
    tiles, groups = -(-n // TILE), k // GROUP
    values = np.zeros((tiles * TILE, k), np.uint8)
    values[:n] = parts.values.reshape(n, k).view(np.uint8)
    quads = (values ^ np.uint8(128)).reshape(tiles, TILE, groups, GROUP // 4, 4)
    pieces = [quads.transpose(0, 2, 3, 1, 4).reshape(tiles, groups, -1), _runs(parts.scales, n, k)]
    if mins:
        zeros = np.zeros_like(parts.scales)
        pieces.append(_runs(parts.mins if parts.mins is not None else zeros, n, k))
    return np.concatenate(pieces, axis=2).reshape(tiles, -1)


def _runs(numbers: NDArray[np.float32], n: int, k: int) -> Bytes:
    """Numbers of runs of 16 or more -> bytes [tiles, groups, 2 x 16 columns of f32]."""
    per_row = numbers.size // n
    tiles = -(-n // TILE)
    spread = np.zeros((tiles * TILE, k // RUN), "<f4")
    spread[:n] = np.repeat(numbers.reshape(n, per_row), k // RUN // per_row, axis=1)
    columns = spread.reshape(tiles, TILE, k // GROUP, 2).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(columns).view(np.uint8).reshape(tiles, k // GROUP, -1)
