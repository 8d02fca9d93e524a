"""In which order patches of an image lie, for who records programs over them and who runs these.

Patches that become one row lie behind one another, so that what folds them (the pixel shuffle of
Idefics 3, the merger of Qwen) is no step: rows [n, columns] read as [n / fold², fold² x columns].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvasir.core.tiles import Media
from kvasir.ir.bundle import Tower

Ints = NDArray[np.int32]


def folded(grid: NDArray[Any], fold: int) -> NDArray[Any]:
    """Of patches [lines, columns] those that become one row behind one another."""
    lines, columns = grid.shape
    parts = grid.reshape(lines // fold, fold, columns // fold, fold)
    return parts.transpose(0, 2, 1, 3).reshape(-1)


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
