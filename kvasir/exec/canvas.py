"""From the tiles of an image to its rows, line by line: what is left of them without the border,
shrunk where that is wanted, and the row of no tile behind each line."""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray

from kvasir.core.tiles import Canvas, Media, TileSpec
from kvasir.ir.program import FloatArray

TileRows = Generator[None, None, FloatArray]
"""Rows of a tile, with a stop before every piece of its tower (``ir.pieces``)."""


def paved(
    media: Media,
    canvas: Canvas,
    tile: TileSpec,
    rows_of: Callable[[Media], TileRows],
    newline: FloatArray,
) -> TileRows:
    """f32 [n_rows, columns]. ``rows_of``: f32 [n_tokens, columns] of a tile alone; ``newline``: f32
    [1, columns]. Tiles are computed one after the other, and a line of them is shrunk before the
    next: rows are then between two of their line, and after all lines between two of their
    column."""
    lines, columns = media.grid
    n_tiles, shown = len(media.pixels) // tile.n_bytes, columns - 1
    n_lines, n_columns = tile.kept(n_tiles, canvas)
    side = tile.side // tile.fold
    bands = []
    for first in range(0, n_tiles, canvas.across):
        grids = []
        for i in range(first, first + canvas.across):
            rows = yield from rows_of(_tile(media, tile, i))
            grids.append(_grid(rows, side))
        band = np.concatenate(grids, axis=1)
        band = band[:, canvas.beside : canvas.beside + n_columns]
        bands.append(_between(band, shown, axis=1))
    grid = np.concatenate(bands)[canvas.above : canvas.above + n_lines]
    grid = _between(grid, lines, axis=0)
    ends = np.broadcast_to(newline, (lines, 1, newline.shape[-1]))
    found: FloatArray = np.concatenate([grid, ends], axis=1).reshape(lines * columns, -1)
    return found


def _tile(media: Media, tile: TileSpec, i: int) -> Media:
    pixels = media.pixels[i * tile.n_bytes : (i + 1) * tile.n_bytes]
    return Media(0, tile.n_tokens, pixels, b"")


def _grid(rows: FloatArray, side: int) -> FloatArray:
    return rows.reshape(side, side, -1)


def _between(grid: FloatArray, n: int, axis: int) -> FloatArray:
    """``n`` in place of those along ``axis``: at the middle of each the line between the nearest
    two; itself where nothing changes. In f32, as PyTorch's bilinear ``interpolate`` has it."""
    n_given = grid.shape[axis]
    if n == n_given:
        return grid
    low, share = _places(n_given, n)
    high = np.minimum(low + 1, n_given - 1)
    shape = [1] * grid.ndim
    shape[axis] = n
    of_high = share.reshape(shape)
    found: FloatArray = np.take(grid, low, axis) * (np.float32(1) - of_high)
    found += np.take(grid, high, axis) * of_high
    return found


def _places(n_given: int, n: int) -> tuple[NDArray[np.int64], FloatArray]:
    """Of each of ``n`` the one before it, and the way from that to the next."""
    scale = np.float32(n_given) / np.float32(n)
    middles = np.arange(n, dtype=np.float32) + np.float32(0.5)
    at = np.maximum(scale * middles - np.float32(0.5), np.float32(0))
    low = np.minimum(at.astype(np.int64), n_given - 1)
    return low, at - low.astype(np.float32)
