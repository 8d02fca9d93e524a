"""Tiles of images: what a tower reads at a time, and what tokens of a prompt stand for."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from math import ceil

import msgspec

CHANNELS = 3
MAX_SIDE = 4096
"""Pixels of an image that is cut into tiles."""
DIGEST_BYTES = 32


class Media(msgspec.Struct, frozen=True, weakref=True):
    """Tokens [start, start + n_tokens) of a prompt stand for a tile. Tiles are named by their
    pixels: equal names are equal rows, in whatever image and request."""

    start: int
    n_tokens: int
    pixels: bytes
    """uint8 [size, size, 3]: rows from the top, red, green, blue."""
    digest: bytes
    """BLAKE2b-256 of ``pixels``."""

    @property
    def end(self) -> int:
        return self.start + self.n_tokens


def media_at(start: int, n_tokens: int, pixels: bytes) -> Media:
    digest = blake2b(pixels, digest_size=DIGEST_BYTES, person=b"kvasir-tile").digest()
    return Media(start, n_tokens, pixels, digest)


@dataclass(frozen=True, slots=True)
class TileSpec:
    """How a tower cuts a tile: into square patches, of which ``fold`` x ``fold`` become a row."""

    size: int
    """Pixels of a side."""
    patch: int
    """Pixels of a side of a patch."""
    fold: int
    """Patches of a side of what becomes one row."""
    factor: float
    """That pixels are multiplied by, before ``mean`` is taken away and ``std`` divides."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    averages: bool = False
    """What becomes one row is the mean of its patches, not all of them side by side."""
    n_first: int = 0
    """Rows of the encoder before those of patches, which are dropped behind it."""

    @property
    def side(self) -> int:
        """Patches."""
        return self.size // self.patch

    @property
    def n_patches(self) -> int:
        return self.side**2

    @property
    def n_tokens(self) -> int:
        """Rows of a tile, each in place of a token's embedding."""
        return self.n_patches // self.fold**2

    @property
    def n_encoded(self) -> int:
        """Rows of the encoder."""
        return self.n_first + self.n_patches

    @property
    def n_joined(self) -> int:
        """Patches side by side in a row."""
        return 1 if self.averages else self.fold**2

    @property
    def n_columns(self) -> int:
        """Numbers of a patch."""
        return CHANNELS * self.patch**2

    @property
    def n_bytes(self) -> int:
        """Of a tile's pixels."""
        return CHANNELS * self.size**2


class Slicing(msgspec.Struct, frozen=True, omit_defaults=True):
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
