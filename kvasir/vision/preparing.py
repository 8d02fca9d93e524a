"""How a model brings an image to the sizes that it reads."""

from __future__ import annotations

from math import ceil

import msgspec

MAX_SIDE = 4096
"""Pixels of an image that is cut into tiles."""


class Slicing(msgspec.Struct, frozen=True, omit_defaults=True, tag="slicing"):
    """How a model cuts images into tiles."""

    tile: int
    """Pixels of a side."""
    longest: int
    """Pixels that an image's longer side is brought to first; 0: it becomes one tile at once."""
    splits: bool
    """Whether there are more tiles than one of the whole image."""
    resample: int
    """Pillow's number of the filter."""
    least: int = 0
    """Tiles of an image that is cut by its shape, the whole not counted."""
    most: int = 0
    """The same; 0: it is not cut so."""

    @property
    def n_most(self) -> int:
        """Tiles of one image."""
        if self.most:
            return self.most + 1
        side = ceil(min(self.longest + 1, MAX_SIDE) / self.tile)
        return side**2 + 1 if self.splits else 1


class Resizing(msgspec.Struct, frozen=True, tag="resizing"):
    """How a model brings an image, whole, to a size near its own (Qwen2-VL's smart resize)."""

    unit: int
    """Pixels of a side of a token: both sides are multiples of it."""
    least: int
    """Pixels of an image."""
    most: int
    """The same: smaller and larger ones are brought to these."""
    resample: int
    """Pillow's number of the filter."""


class Bounding(msgspec.Struct, frozen=True, tag="bounding"):
    """How a model brings an image, whole, to a size near its own (Pixtral)."""

    unit: int
    """Pixels of a side of a token: both sides become multiples of it, never less than they are."""
    longest: int
    """Pixels of a side: larger images are brought to it before."""
    resample: int
    """Pillow's number of the filter."""


class Scaling(msgspec.Struct, frozen=True, tag="scaling"):
    """How a model brings an image, whole, to the largest size of its shape that has so many tokens
    at most, however small it is (Gemma 4)."""

    unit: int
    """Pixels of a side of a token: both sides are multiples of it."""
    most: int
    """Tokens."""
    resample: int
    """Pillow's number of the filter."""


class Paving(msgspec.Struct, frozen=True, tag="paving"):
    """How a model cuts an image, in its shape, into the tiles of the size that suits it best
    (LLaVA's anyres); the whole as one tile goes before."""

    tile: int
    """Pixels of a side."""
    seen: int
    """Of them those that the tower reads, from the upper left."""
    side: int
    """Rows of a side of a tile."""
    sizes: tuple[tuple[int, int], ...]
    """Pixels, (height, width): of equally good ones the first is taken."""
    most: int
    """As many tiles' rows an image has, and a fifth more: it is shrunk to these if it has more."""
    resample: int
    """Pillow's number of the filter."""


Preparing = Slicing | Resizing | Bounding | Scaling | Paving
