"""How a model of LLaVA's cuts images (anyres), from the two files that say it."""

from __future__ import annotations

from collections.abc import Sequence

from kvasir.checkpoints.keys import Keys
from kvasir.core.tiles import MAX_TILES
from kvasir.vision.preparing import Paving

_SIZES, _RATIO = "image_grid_pinpoints", "vision_aspect_ratio"
_BEGIN, _DEFAULT = "anyres_max_", 9
_MOST_SIZES = 4 * MAX_TILES
_GRID = 6
"""Tiles of a side of the largest size, in files that list none."""


def read_paving(config: Keys, processor: Keys, tile: tuple[int, int, int], resample: int) -> Paving:
    """``tile``: its pixels of a side, those that the tower reads, and its rows. Raises ModelError
    where the files do not agree, and on what is cut in another way."""
    pixels, seen, side = tile
    processor.refuse("do_center_crop", False)
    sizes = _sizes(config, pixels)
    if _sizes(processor, pixels) != sizes:
        raise processor.error(_SIZES, processor.raw(_SIZES), "those of config.json")
    return Paving(pixels, seen, side, sizes, _most(config), resample)


def _most(config: Keys) -> int:
    said = config.raw(_RATIO)
    ratio = f"{_BEGIN}{_DEFAULT}" if said is None else str(said)
    number = ratio.removeprefix(_BEGIN)
    is_known = ratio.startswith(_BEGIN) and number.isascii() and number.isdigit()
    if not is_known or not 0 < int(number) <= MAX_TILES:
        raise config.error(_RATIO, said, f"{_BEGIN} and a number of tiles, at most {MAX_TILES}")
    return int(number)


def _sizes(keys: Keys, pixels: int) -> tuple[tuple[int, int], ...]:
    said = keys.raw(_SIZES)
    if said is None:
        steps = [pixels * n for n in range(1, _GRID + 1)]
        return tuple((height, width) for height in steps for width in steps)
    if not isinstance(said, list) or not 0 < len(said) <= _MOST_SIZES:
        raise keys.error(_SIZES, said, f"1 to {_MOST_SIZES} pairs of pixels")
    return tuple(_size(keys, each, pixels) for each in said)


def _size(keys: Keys, said: object, pixels: int) -> tuple[int, int]:
    pair = list(said) if isinstance(said, Sequence) and not isinstance(said, str) else []
    whole = [x // pixels for x in pair if type(x) is int and x > 0 and x % pixels == 0]
    if len(pair) != 2 or len(whole) != 2 or whole[0] * whole[1] > MAX_TILES:
        wanted = f"a height and a width of whole tiles of {pixels}, at most {MAX_TILES} of them"
        raise keys.error(_SIZES, said, wanted)
    return whole[0] * pixels, whole[1] * pixels
