"""How models cut or resize an image: sizes alone, in whole pixels (width, height)."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf, sqrt

from msgspec.structs import replace

from kvasir.config.pixels import PixelBounds
from kvasir.core.errors import ConfigError
from kvasir.core.tiles import MAX_TOKENS, Canvas
from kvasir.vision.preparing import MAX_SIDE, Bounding, Paving, Preparing, Resizing, Scaling

Size = tuple[int, int]
MAX_SHARE = 200
"""Of the sides of an image that is read whole."""
_SPARE = 1.1
"""Times the side of the rows that an image may have."""


def first_size(size: Size, longest: int) -> Size:
    """As Idefics 3 begins: the longer side becomes ``longest``, the other one even, neither more
    than MAX_SIDE."""
    width, height = size
    share = width / height
    if width >= height:
        width, height = longest, _even(int(longest / share))
    else:
        width, height = _even(int(longest * share)), longest
    width, height = max(width, 1), max(height, 1)
    share = width / height
    if width >= height and width > MAX_SIDE:
        width, height = MAX_SIDE, int(MAX_SIDE / share)
    elif height > width and height > MAX_SIDE:
        width, height = int(MAX_SIDE * share), MAX_SIDE
    return max(width, 1), max(height, 1)


def grid_size(size: Size, tile: int) -> Size:
    """And goes on, in whole tiles: those of the longer side, and what keeps the shape."""
    width, height = size
    share = width / height
    if width >= height:
        width = _tiles(width, tile)
        return width, _tiles(int(width / share), tile)
    height = _tiles(height, tile)
    return _tiles(int(height * share), tile), height


def _even(n: int) -> int:
    return n + n % 2


def _tiles(n: int, tile: int) -> int:
    return ceil(n / tile) * tile


def fitted_size(size: Size, how: Resizing) -> Size:
    """Multiples of its unit, of as many pixels as it takes and nearly of the shape of ``size``,
    which is at most ``MAX_SHARE`` times as long as wide."""
    width, height, unit = *size, how.unit
    fitted = round(width / unit) * unit, round(height / unit) * unit
    if fitted[0] * fitted[1] > how.most:
        by = sqrt((height * width) / how.most)
        return _multiple(floor(width / by / unit), unit), _multiple(floor(height / by / unit), unit)
    if fitted[0] * fitted[1] < how.least:
        by = sqrt(how.least / (height * width))
        return ceil(width * by / unit) * unit, ceil(height * by / unit) * unit
    return fitted


def _multiple(n: int, unit: int) -> int:
    return max(n, 1) * unit


def shape_grid(size: Size, tile: int, least: int, most: int) -> tuple[int, int]:
    """(columns, rows) of the tiles whose shape is nearest, as InternVL cuts; of equal ones those
    with most tiles, as long as they have less than twice the pixels of the image."""
    width, height = size
    grids = [
        (columns, rows)
        for columns in _count(most)
        for rows in _count(most)
        if least <= columns * rows <= most
    ]
    best, nearest = (1, 1), float("inf")
    for columns, rows in sorted(grids, key=lambda grid: grid[0] * grid[1]):
        distance = abs(width / height - columns / rows)
        is_filled = width * height > 0.5 * tile * tile * columns * rows
        if distance < nearest or (distance == nearest and is_filled):
            best, nearest = (columns, rows), distance
    return best


def _count(n: int) -> range:
    return range(1, n + 1)


def bounded_size(size: Size, how: Bounding) -> Size:
    """Multiples of its unit, of the shape of ``size`` brought to its longest side if it is longer;
    0 where nothing is left of a side. In floats, as the models' processor counts."""
    width, height, unit = *size, how.unit
    share = max(height / how.longest, width / how.longest)
    if share > 1:
        width, height = floor(width / share), floor(height / share)
    return ceil(width / unit) * unit, ceil(height / unit) * unit


def scaled_size(size: Size, how: Scaling) -> Size:
    """Multiples of its unit, of the shape of ``size`` rounded down; a side of which nothing would
    be left is one unit, and the other then what it is times as long; 0 where both would be nothing.
    In floats, as the models' processor counts."""
    width, height, unit = *size, how.unit
    by = sqrt(how.most * unit**2 / (height * width))
    columns, lines = floor(width * by / unit), floor(height * by / unit)
    if not columns and not lines:
        return 0, 0
    if not lines:
        return min(floor(width / height), how.most) * unit, unit
    if not columns:
        return unit, min(floor(height / width), how.most) * unit
    return columns * unit, lines * unit


def paved_size(size: Size, sizes: Sequence[tuple[int, int]]) -> tuple[Size, Size]:
    """Of tiles together, in which most pixels of the image are left and then fewest of others, as
    LLaVA has it; and of the image among them."""
    width, height = size
    best, most, least = sizes[0], 0, inf
    for high, wide in sizes:
        scale = min(wide / width, high / height)
        left = min(int(width * scale) * int(height * scale), width * height)
        if left > most or (left == most and wide * high - left < least):
            best, most, least = (wide, high), left, wide * high - left
    (wide, high), by = best, (best[0] / width, best[1] / height)
    if by[0] < by[1]:
        return best, (wide, min(ceil(height * by[0]), high))
    return best, (min(ceil(width * by[1]), wide), high)


def paved_rows(size: Size, tiles: Size, how: Paving) -> tuple[Size, Canvas]:
    """Rows (columns, lines) of an image of ``size`` in so many tiles, where the border around it is
    left out and the rest shrunk, and how. In floats, as LLaVA counts."""
    (width, height), (across, down) = size, tiles
    columns, lines = across * how.side, down * how.side
    above = beside = 0
    if width / height > columns / lines:
        above = (lines - int(round(height * (columns / width), 7))) // 2
    else:
        beside = (columns - int(round(width * (lines / height), 7))) // 2
    canvas = Canvas(across, above, beside)
    lines, columns = lines - 2 * above, columns - 2 * beside
    ratio = sqrt(lines * columns / (how.most * how.side**2))
    if ratio > _SPARE:
        lines, columns = int(lines // ratio), int(columns // ratio)
    return (columns, lines), canvas


def within(how: Preparing, bounds: PixelBounds) -> Preparing:
    """``how`` with other bounds. Raises ConfigError for a model that reads images at sizes of its
    own, and for bounds that contradict those that its processor has."""
    if not isinstance(how, Resizing):
        raise ConfigError(
            "mm_processor_kwargs: this model reads images at sizes of its own: min_pixels and "
            "max_pixels are of models that read them near theirs, such as Qwen2-VL to Qwen3.5"
        )
    least, most = bounds.min_pixels or how.least, bounds.max_pixels or how.most
    if least > most:
        raise ConfigError(
            f"mm_processor_kwargs: an image would have at least {least} pixels and at most {most}: "
            "say both min_pixels and max_pixels"
        )
    if least > MAX_TOKENS * how.unit**2:
        raise ConfigError(
            f"mm_processor_kwargs: an image of at least {least} pixels would become more than "
            f"{MAX_TOKENS} tokens: min_pixels may be up to {MAX_TOKENS * how.unit**2}"
        )
    return replace(how, least=least, most=most)
