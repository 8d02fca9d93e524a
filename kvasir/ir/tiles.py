"""From the pixels of a tile to what a tower's encoder reads, and from its rows to the connector's.

Patches that become one row lie behind one another, so that what folds them (the pixel shuffle of
Idefics 3) is no step: rows [n, columns] read as [n / fold², fold² x columns].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir.core.tiles import CHANNELS, TileSpec
from kvasir.ir.program import FloatArray


def patches(pixels: bytes, tile: TileSpec) -> FloatArray:
    """f32 [n_encoded, n_columns] of ``Media.pixels``: of each patch all reds, row by row, then all
    greens, then all blues; each rounded after the factor, the mean and the deviation. Before them
    zeros in the rows of no patch."""
    n, fold, patch = tile.side // tile.fold, tile.fold, tile.patch
    levels = np.frombuffer(pixels, np.uint8).reshape(n, fold, patch, n, fold, patch, CHANNELS)
    order = levels.transpose(0, 3, 1, 4, 6, 2, 5).reshape(tile.n_patches, CHANNELS, patch**2)
    table = _values(tile)
    channels = [table[c][order[:, c]] for c in range(CHANNELS)]
    rows = np.concatenate(channels, axis=1)
    if not tile.n_first:
        return rows
    return np.concatenate([np.zeros((tile.n_first, tile.n_columns), np.float32), rows])


def _values(tile: TileSpec) -> FloatArray:
    """f32 [channels, 256]: what each level becomes."""
    scaled = (np.arange(256, dtype=np.float64) * tile.factor).astype(np.float32)
    mean, std = (np.array(x, np.float32)[:, None] for x in (tile.mean, tile.std))
    found: FloatArray = (scaled - mean) / std
    return found


def joined(rows: FloatArray, tile: TileSpec) -> FloatArray:
    """f32 [n_tokens, columns x n_joined] of the encoder's rows [n_encoded, columns]: side by side,
    or means, whose sums go from patch to patch."""
    rows = rows[tile.n_first :]
    if not tile.averages:
        return rows.reshape(tile.n_tokens, -1)
    parts = rows.reshape(tile.n_tokens, tile.fold**2, -1)
    total = parts[:, 0].copy()
    for i in range(1, tile.fold**2):
        total += parts[:, i]
    found: FloatArray = total / np.float32(tile.fold**2)
    return found


def plain_positions(tile: TileSpec) -> NDArray[np.int32]:
    """i32 [n_encoded]: of each patch its row in a table of as many, from the top, row by row; what
    no patch makes comes first."""
    places = np.arange(tile.n_encoded, dtype=np.int32)
    first, grid = places[: tile.n_first], places[tile.n_first :].reshape(tile.side, tile.side)
    return np.concatenate([first, _in_order(grid, tile)])


def positions(tile: TileSpec, trained: int) -> NDArray[np.int32]:
    """i32 [n_patches]: of each patch its row in a table of ``trained`` x ``trained`` positions, of
    the part of the tile where it begins; in f32, as the models were trained."""
    step = np.float32(1.0) / np.float32(tile.side)
    begins = np.minimum(np.arange(tile.side, dtype=np.float32) * step, np.float32(1.0 - 1e-6))
    inner = (1 / trained + np.arange(trained - 1) * (1 / trained)).astype(np.float32)
    at = np.searchsorted(inner, begins, side="right")
    grid = at[:, None] * trained + at[None, :]
    return _in_order(grid.astype(np.int32), tile)


def _in_order(grid: NDArray[np.int32], tile: TileSpec) -> NDArray[np.int32]:
    """Of all patches, those that become one row behind one another."""
    n, fold = tile.side // tile.fold, tile.fold
    return grid.reshape(n, fold, n, fold).transpose(0, 2, 1, 3).reshape(-1)
