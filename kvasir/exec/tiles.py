"""From the pixels of a tile to what a tower's encoder reads (``ir.tiles`` has the order of its
rows), and from its rows to the connector's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvasir.core.tiles import CHANNELS, Media, TileSpec
from kvasir.ir.bundle import CORNERS, IS_MEDIA, PATCHES, ROPE_POSITIONS, SHARES, Tower
from kvasir.ir.program import FloatArray
from kvasir.ir.tiles import Ints, folded, windows


def patches(media: Media, tile: TileSpec) -> FloatArray:
    """f32 [rows, n_columns] of a tile: of each patch all reds, row by row, as often as it has
    frames, then all greens, then all blues; each rounded after the factor, the mean and the
    deviation. Before them zeros in the rows of no patch."""
    (lines, columns), fold, patch = media.grid, tile.fold, tile.patch
    shape = lines, fold, patch, columns, fold, patch, CHANNELS
    levels = np.frombuffer(media.pixels, np.uint8).reshape(shape)
    order = levels.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, CHANNELS, patch**2)
    table = _values(tile)
    channels = [table[c][order[:, c]] for c in range(CHANNELS) for _ in range(tile.frames)]
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
    """f32 [tokens, columns x n_joined] of the encoder's rows [rows, columns]: side by side,
    or means, whose sums go from patch to patch."""
    rows = rows[tile.n_first :]
    if not tile.averages:
        return rows.reshape(len(rows) // tile.fold**2, -1)
    parts = rows.reshape(len(rows) // tile.fold**2, tile.fold**2, -1)
    total = parts[:, 0].copy()
    for i in range(1, tile.fold**2):
        total += parts[:, i]
    found: FloatArray = total / np.float32(tile.fold**2)
    return found


def encoder_inputs(tower: Tower, media: Media) -> Mapping[str, NDArray[Any]]:
    """What the encoder of a tower reads of an image, by name, window by window; but where what a
    row sees ends."""
    tile, rows = tower.tile, patches(media, tower.tile)
    if tile.size:
        n = len(rows)
        is_first = (np.arange(n) < tile.n_first).astype(np.int32)
        found = {"types": np.zeros(n, np.int32), IS_MEDIA: is_first}
        return {**found, PATCHES: rows, "positions": np.array(tower.positions)}
    lines, columns = tile.patches_of(media)
    given = {"types": np.zeros(len(rows), np.int32), PATCHES: rows}
    given |= {ROPE_POSITIONS: _grid_positions(lines, columns, tile.fold)}
    if tower.side:
        corners, shares = between_positions((lines, columns), tower.side, tile.fold)
        given |= {CORNERS: corners, SHARES: shares}
    if tower.axis:
        given |= _axis_positions((lines, columns), tower.axis, tile.fold)
    order, _ = windows(media, tower.window)
    return {name: _taken(rows, order) for name, rows in given.items()}


def placed(rows: FloatArray, tower: Tower, media: Media) -> FloatArray:
    """Rows of tokens in the order of the image, of those window by window."""
    order, _ = windows(media, tower.window)
    found = np.empty_like(rows)
    found[order] = rows
    return found


def _taken(rows: NDArray[Any], order: Ints) -> NDArray[Any]:
    """Rows of patches, of which as many are a token."""
    return rows.reshape(len(order), -1, *rows.shape[1:])[order].reshape(rows.shape)


def _grid_positions(lines: int, columns: int, fold: int) -> Ints:
    """i32 [patches, 3]: no time, line and column."""
    line, column = np.indices((lines, columns), np.int32)
    places = [folded(x, fold) for x in (np.zeros_like(line), line, column)]
    return np.stack(places, axis=1)


def between_positions(grid: tuple[int, int], side: int, fold: int) -> tuple[Ints, FloatArray]:
    """Of each patch of a grid four rows of a table of ``side`` x ``side`` positions, whose corners
    are those of the grid, and their shares: i32 and f32 [patches, 4]. In f32, as the models were
    trained."""
    (low_line, high_line, below), (low, high, right) = (_between(n, side) for n in grid)
    lines, columns = ((low_line, 1 - below), (high_line, below)), ((low, 1 - right), (high, right))
    corners, shares = [], []
    for line, of_line in lines:
        for column, of_column in columns:
            corners.append(folded(line[:, None] * side + column[None, :], fold))
            shares.append(folded(of_line[:, None] * of_column[None, :], fold))
    return np.stack(corners, axis=1).astype(np.int32), np.stack(shares, axis=1)


def _axis_positions(grid: tuple[int, int], axis: int, fold: int) -> Mapping[str, NDArray[Any]]:
    """Of each patch of a grid its row in a table of ``axis`` columns, and in one of lines behind
    it: the first two of ``CORNERS``, whole."""
    line, column = np.indices(grid, np.int32)
    corners = np.zeros((line.size, 4), np.int32)
    corners[:, 0], corners[:, 1] = folded(column, fold), axis + folded(line, fold)
    shares = np.zeros((line.size, 4), np.float32)
    shares[:, :2] = 1
    return {CORNERS: corners, SHARES: shares}


def _between(n: int, side: int) -> tuple[Ints, Ints, FloatArray]:
    """Of ``n`` places on a side of a table the positions before and behind, and the way between."""
    at = _spread(n, side - 1)
    low = at.astype(np.int32)
    return low, np.minimum(low + 1, side - 1).astype(np.int32), at - low.astype(np.float32)


def _spread(n: int, end: int) -> FloatArray:
    """``n`` numbers from 0 to ``end``, each product rounded and then divided."""
    found: FloatArray = np.arange(n, dtype=np.float32) * np.float32(end)
    return found / np.float32(max(n - 1, 1))
