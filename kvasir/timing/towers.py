"""How long the tower of an image may take. Nobody learns it: it tells a slow step from a hang."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvasir.core.tiles import Media
from kvasir.ir.bundle import Tower
from kvasir.ir.cost import program_cost
from kvasir.ir.ops import Sizes
from kvasir.ir.program import Program

SLOW_FLOPS = 3e10
"""Operations in a second of a slow machine, all its threads together."""


@dataclass(frozen=True, slots=True)
class TowerPrior:
    """Seconds on a slow machine. Pairs are told apart from rows: their number grows with the square
    of an image's patches, except where patches see those of their window alone."""

    row: float
    pair: float
    """Of rows of the whole image."""
    near: float
    """Of rows of a window."""
    n_near: int
    """Rows of a window at most."""
    n_folded: int
    """Rows that become one token."""
    n_first: int
    n_patches: int = 0
    """Of a tile, at most."""
    n_bytes: int = 0
    """Of its pixels; 0: it is of any size."""

    @classmethod
    def of(cls, tower: Tower) -> TowerPrior:
        n_folded = tower.tile.fold**2
        row = _flops(tower.connector)[0] / n_folded
        pairs = [0.0, 0.0]
        for i, encoder in enumerate(tower.encoders):
            of_row, of_pair = _flops(encoder)
            row += of_row
            pairs[bool(tower.window) and not i % 2] += of_pair
        far, near = (x / SLOW_FLOPS for x in pairs)
        n_near = tower.window**2 * n_folded
        tile = tower.tile
        sizes = n_near, n_folded, tile.n_first, tile.n_patches, tile.n_bytes
        return cls(row / SLOW_FLOPS, far, near, *sizes)

    def seconds(self, tiles: Iterable[Media]) -> float:
        """Of all, one after the other."""
        return sum(self._of_media(x) for x in tiles)

    def _of_media(self, media: Media) -> float:
        """Each tile of a canvas alone."""
        if media.canvas is None:
            return self._of_rows(self.n_first + media.n_rows * self.n_folded)
        n_tiles = len(media.pixels) // self.n_bytes
        return n_tiles * self._of_rows(self.n_first + self.n_patches)

    def _of_rows(self, n: int) -> float:
        return n * (self.row + n * self.pair + min(n, self.n_near) * self.near)


def _flops(program: Program) -> tuple[float, float]:
    """Of a row, and of a pair of rows."""
    one = program_cost(program, Sizes(1, 1)).flops
    row = program_cost(program, Sizes(2, 1)).flops - one
    return row, program_cost(program, Sizes(1, 1, attended=1)).flops - one
