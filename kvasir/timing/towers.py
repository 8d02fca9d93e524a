"""How long pieces of towers take: learned from steps that ran some, and on a slow machine at most,
which tells a slow step from a hang."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvasir.core.tiles import Media

SLOW_FLOPS = 3e10
"""Operations in a second of a slow machine, all its threads together: what is expected before any
was measured."""
KEPT = 0.8
"""Of what was measured before, with each step that runs pieces."""


class Pieces(Protocol):
    """``ir.pieces.TowerPieces``: who only explains times does not bring NumPy."""

    def of_media(self, media: Media) -> Sequence[float]:
        """Operations of each."""
        ...

    def n_bytes(self, media: Media) -> int:
        """Of its rows, f32."""
        ...


class TowerCosts:
    """Seconds of an operation are those of all steps so far, the newest counted most; so a piece
    that hardly computes anything says little."""

    def __init__(self, pieces: Pieces) -> None:
        self.pieces = pieces
        self._flops = self._seconds = 0.0

    def seconds(self, flops: float) -> float:
        """That pieces of so many operations are expected to take."""
        if not self._flops:
            return self.most_seconds(flops)
        return flops * self._seconds / self._flops

    def most_seconds(self, flops: float) -> float:
        """That they may take on a slow machine."""
        return flops / SLOW_FLOPS

    def observe(self, flops: float, seconds: float) -> None:
        """Pieces of a step took ``seconds``; zero says that nobody measured."""
        if flops > 0.0 and seconds > 0.0:
            self._flops = KEPT * self._flops + flops
            self._seconds = KEPT * self._seconds + seconds
