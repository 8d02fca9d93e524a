"""Pieces of towers: what of an image is computed at a time, so that others wait for no more.

Programs of a tower run phase by phase (``ir.phases``), and of a phase that takes long some of its
items at a time. What comes between two of them stays in the tower's memory. All pieces of an image
in their order are the same computation as without them, to the bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.core.tiles import Media
from kvasir.ir.bundle import Tower
from kvasir.ir.cost import op_cost
from kvasir.ir.ops import Sizes
from kvasir.ir.ops.checks import width
from kvasir.ir.phases import phases
from kvasir.ir.program import Program
from kvasir.ir.tiles import stage_rows

PIECE_FLOPS = 2e9
"""Of a piece at most, or of the smallest part that a phase has: 5 to 10 ms of two cores."""
MAX_PARTS = 1024
"""Of a phase."""
Ints = NDArray[np.int32]
Doubles = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ProgramPhases:
    """Operations of each phase of a program, f64 [phases] each. Pairs are told apart from rows:
    their number grows with the square of an image's patches, except in windows."""

    row: Doubles
    pair: Doubles
    """Of rows that see each other."""

    @classmethod
    def of(cls, program: Program) -> ProgramPhases:
        places = phases(program)
        row, pair = (np.zeros(max(places) + 1) for _ in range(2))
        for op, phase in zip(program.ops, places, strict=True):
            one = op_cost(program, op, Sizes(1, 1)).flops
            row[phase] += op_cost(program, op, Sizes(2, 1)).flops - one
            pair[phase] += op_cost(program, op, Sizes(1, 1, attended=1)).flops - one
        return cls(row, pair)

    def flops(self, lengths: Ints) -> Doubles:
        """Over sequences of ``lengths`` rows."""
        n = lengths.astype(np.float64)
        found: Doubles = self.row * n.sum() + self.pair * (n * n).sum()
        return found


@dataclass(frozen=True, slots=True)
class TowerPieces:
    """Deterministic: who plans the pieces and who runs them have the same."""

    tower: Tower
    programs: Sequence[ProgramPhases]
    """In the order of ``Tower.programs``."""
    piece_flops: float

    @classmethod
    def of(cls, tower: Tower) -> TowerPieces:
        return cls(tower, tuple(map(ProgramPhases.of, tower.programs)), PIECE_FLOPS)

    def parts(self, program: int, lengths: Ints) -> list[int]:
        """Of each phase of a program, over sequences of so many rows: in how many it runs."""
        n = np.ceil(self.programs[program].flops(lengths) / self.piece_flops)
        return [int(x) for x in np.clip(n, 1, MAX_PARTS)]

    def of_media(self, media: Media) -> list[float]:
        """Operations of each."""
        return [float(x) for x in self._of_media(media)]

    def _of_media(self, media: Media) -> Doubles:
        if media.canvas is None:
            return self._of_tile(media)
        newline = self._of_program(len(self.programs) - 1, np.ones(1, np.int32))
        n_tiles = len(media.pixels) // self.tower.tile.n_bytes
        tile = Media(0, self.tower.tile.n_tokens, b"", b"")
        return np.concatenate([newline, np.tile(self._of_tile(tile), n_tiles)])

    def n_bytes(self, media: Media) -> int:
        """Of its rows, f32."""
        connector = self.tower.connector
        n_columns = sum(width(connector.values[name]) for name in connector.outputs)
        return media.n_rows * n_columns * 4

    def _of_tile(self, media: Media) -> Doubles:
        encoders = stage_rows(self.tower, media)
        lengths = [*encoders, np.array([media.n_rows], np.int32)]
        return np.concatenate([self._of_program(i, n) for i, n in enumerate(lengths)])

    def _of_program(self, program: int, lengths: Ints) -> Doubles:
        parts = self.parts(program, lengths)
        return np.repeat(self.programs[program].flops(lengths) / parts, parts)
