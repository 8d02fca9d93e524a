"""Tiles of images: what a tower reads at a time, and what tokens of a prompt stand for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, isqrt

import msgspec

CHANNELS = 3
MAX_TOKENS = 4096
"""Of an image that is read whole: its patches all see each other, which takes their square of
time."""
DIGEST_BYTES = 32
MAX_TILES = 64
"""Of one image."""


class Canvas(msgspec.Struct, frozen=True):
    """Tiles of one image side by side and below each other, of whose rows those of its border are
    left out, and what is left may be shrunk; behind each line is a row of no tile."""

    across: int
    """Tiles side by side."""
    above: int = 0
    """Lines of rows that are left out above, and as many below."""
    beside: int = 0
    """The same at the left, and at the right."""

    @property
    def named(self) -> bytes:
        """For digests."""
        return b"".join(x.to_bytes(4, "little") for x in (self.across, self.above, self.beside))


class Media(msgspec.Struct, frozen=True, weakref=True):
    """Tokens [start, start + n_tokens) of a prompt stand for a tile. Tiles are named by their
    pixels: equal names are equal rows, in whatever image and request."""

    start: int
    n_tokens: int
    pixels: bytes
    """uint8 [height, width, 3]: rows from the top, red, green, blue. Of a canvas those of its
    tiles, line by line."""
    digest: bytes
    """BLAKE2b-256 of ``pixels``, and of ``columns`` and ``canvas`` where they are said."""
    columns: int = 0
    """Tokens side by side; 0: as many as below each other."""
    breaks: int = 0
    """Tokens behind each line that stand for nothing of it."""
    canvas: Canvas | None = None
    """Of several tiles; the last of ``columns`` is then of none."""

    @property
    def end(self) -> int:
        return self.start + self.n_tokens

    @property
    def grid(self) -> tuple[int, int]:
        """Rows below each other and side by side."""
        columns = self.columns or isqrt(self.n_tokens)
        return self.n_tokens // (columns + self.breaks), columns

    @property
    def n_rows(self) -> int:
        """Of its tokens those that stand for a row of a tower."""
        lines, columns = self.grid
        return lines * columns

    def runs(self, begin: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Of its tokens [begin, end) those that stand for rows, line by line where something is
        between them: the first token, its row, and how many follow one another."""
        if not self.breaks:
            yield begin, begin, end - begin
            return
        _, columns = self.grid
        step = columns + self.breaks
        for line in range(begin // step, ceil(end / step)):
            first, last = max(begin, line * step), min(end, line * step + columns)
            if first < last:
                yield first, first - line * self.breaks, last - first


def media_at(
    start: int,
    n_tokens: int,
    pixels: bytes,
    columns: int = 0,
    breaks: int = 0,
    canvas: Canvas | None = None,
) -> Media:
    hashed = blake2b(pixels, digest_size=DIGEST_BYTES, person=b"kvasir-tile")
    if columns:
        hashed.update(columns.to_bytes(4, "little"))
    if canvas is not None:
        hashed.update(canvas.named)
    return Media(start, n_tokens, pixels, hashed.digest(), columns, breaks, canvas)


@dataclass(frozen=True, slots=True)
class TileSpec:
    """How a tower cuts a tile: into square patches, of which ``fold`` x ``fold`` become a row."""

    size: int
    """Pixels of a side; 0: tiles are of any size, in whole rows."""
    patch: int
    """Pixels of a side of a patch."""
    fold: int
    """Patches of a side of what becomes one row."""
    factor: float
    """That pixels are multiplied by, before ``mean`` is taken away and ``std`` divides."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    frames: int = 1
    """Of a film that a patch is of: an image is that many equal ones."""
    averages: bool = False
    """What becomes one row is the mean of its patches, not all of them side by side."""
    n_first: int = 0
    """Rows of the encoder before those of patches, which are dropped behind it."""
    newline: bool = False
    """Several tiles of an image may be one ``Media``, with a row behind each line (``Canvas``)."""
    most: int = MAX_TOKENS
    """Rows of a tile of any size."""

    @property
    def side(self) -> int:
        """Patches."""
        return self.size // self.patch

    @property
    def n_patches(self) -> int:
        """At most."""
        return self.side**2 if self.size else self.most * self.fold**2

    @property
    def n_tokens(self) -> int:
        """Rows of a tile, each in place of a token's embedding; at most."""
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
        return CHANNELS * self.frames * self.patch**2

    @property
    def unit(self) -> int:
        """Pixels of a side of what becomes one row."""
        return self.patch * self.fold

    @property
    def n_bytes(self) -> int:
        """Of a tile's pixels."""
        return CHANNELS * self.size**2

    def fits(self, media: Media) -> bool:
        """Whether a tower of such tiles can read it."""
        if media.n_tokens <= 0 or min(media.columns, media.breaks) < 0:
            return False
        if media.canvas is not None:
            return self.newline and self._fits_canvas(media, media.canvas)
        lines, columns = media.grid
        is_square = not self.size or lines == columns == self.size // self.unit
        n_bytes = CHANNELS * lines * columns * self.unit**2
        is_whole = lines * (columns + media.breaks) == media.n_tokens
        fits = is_square and is_whole and 0 < media.n_rows <= self.n_tokens
        return fits and len(media.pixels) == n_bytes

    def _fits_canvas(self, media: Media, canvas: Canvas) -> bool:
        n, left = divmod(len(media.pixels), self.n_bytes)
        margins = canvas.above, canvas.beside
        if left or min(*margins, canvas.across - 1) < 0 or not 0 < n <= MAX_TILES:
            return False
        lines, columns = media.grid
        most_lines, most_columns = self.kept(n, canvas)
        is_whole = n % canvas.across == 0 and lines * columns == media.n_tokens
        fits = 0 < lines <= most_lines and 1 <= columns <= most_columns + 1
        return is_whole and not media.breaks and fits

    def kept(self, n_tiles: int, canvas: Canvas) -> tuple[int, int]:
        """Rows below each other and side by side that are left of so many tiles."""
        side, across = self.side // self.fold, canvas.across
        return n_tiles // across * side - 2 * canvas.above, across * side - 2 * canvas.beside

    @property
    def wanted(self) -> str:
        """For people: what ``fits``."""
        if self.size:
            return f"a tile has {self.n_bytes}, and {self.n_tokens} tokens"
        n_bytes = CHANNELS * self.unit**2
        return f"a token has {n_bytes}, and an image at most {self.n_tokens} tokens"

    def patches_of(self, media: Media) -> tuple[int, int]:
        """Below each other and side by side."""
        lines, columns = media.grid
        return lines * self.fold, columns * self.fold
