"""From the pixels of a tile to what a tower's encoder reads, and from its rows to the connector's.

Patches that become one row lie behind one another, so that what folds them (the pixel shuffle of
Idefics 3, the merger of Qwen) is no step: rows [n, columns] read as [n / fold², fold² x columns].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvasir.core.tiles import CHANNELS, Media, TileSpec
from kvasir.ir.bundle import CORNERS, IS_MEDIA, PATCHES, ROPE_POSITIONS, SHARES, Tower
from kvasir.ir.program import FloatArray

Ints = NDArray[np.int32]


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


def plain_positions(tile: TileSpec) -> Ints:
    """i32 [n_encoded]: of each patch its row in a table of as many, from the top, row by row; what
    no patch makes comes first."""
    places = np.arange(tile.n_encoded, dtype=np.int32)
    first, grid = places[: tile.n_first], places[tile.n_first :].reshape(tile.side, tile.side)
    return np.concatenate([first, _folded(grid, tile.fold)])


def positions(tile: TileSpec, trained: int) -> Ints:
    """i32 [n_patches]: of each patch its row in a table of ``trained`` x ``trained`` positions, of
    the part of the tile where it begins; in f32, as the models were trained."""
    step = np.float32(1.0) / np.float32(tile.side)
    begins = np.minimum(np.arange(tile.side, dtype=np.float32) * step, np.float32(1.0 - 1e-6))
    inner = (1 / trained + np.arange(trained - 1) * (1 / trained)).astype(np.float32)
    at = np.searchsorted(inner, begins, side="right")
    grid = at[:, None] * trained + at[None, :]
    found: Ints = _folded(grid.astype(np.int32), tile.fold)
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


def windows(media: Media, side: int) -> tuple[Ints, Ints]:
    """The rows of an image, window by window of ``side`` x ``side`` from the upper left, line by
    line, and how many each has; 0: all are in one."""
    lines, columns = media.grid
    places = np.arange(media.n_rows, dtype=np.int32).reshape(lines, columns)
    side = side or max(lines, columns)
    parts = [
        places[line : line + side, column : column + side].reshape(-1)
        for line in range(0, lines, side)
        for column in range(0, columns, side)
    ]
    return np.concatenate(parts), np.array([len(part) for part in parts], np.int32)


def stage_rows(tower: Tower, media: Media) -> list[Ints]:
    """Of each encoder of a tower the rows of every sequence: those of a window, or all."""
    _, sizes = windows(media, tower.window)
    n_patches = sizes * tower.tile.fold**2
    whole = np.array([tower.tile.n_first + n_patches.sum()], np.int32)
    turns = (n_patches, whole) if tower.window else (whole, whole)
    return [turns[i % 2] for i in range(len(tower.encoders))]


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
    places = [_folded(x, fold) for x in (np.zeros_like(line), line, column)]
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
            corners.append(_folded(line[:, None] * side + column[None, :], fold))
            shares.append(_folded(of_line[:, None] * of_column[None, :], fold))
    return np.stack(corners, axis=1).astype(np.int32), np.stack(shares, axis=1)


def _axis_positions(grid: tuple[int, int], axis: int, fold: int) -> Mapping[str, NDArray[Any]]:
    """Of each patch of a grid its row in a table of ``axis`` columns, and in one of lines behind
    it: the first two of ``CORNERS``, whole."""
    line, column = np.indices(grid, np.int32)
    corners = np.zeros((line.size, 4), np.int32)
    corners[:, 0], corners[:, 1] = _folded(column, fold), axis + _folded(line, fold)
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


def _folded(grid: NDArray[Any], fold: int) -> NDArray[Any]:
    """Of patches [lines, columns] those that become one row behind one another."""
    lines, columns = grid.shape
    parts = grid.reshape(lines // fold, fold, columns // fold, fold)
    return parts.transpose(0, 2, 1, 3).reshape(-1)
