"""Where tokens of a request stand for tiles, as far as its chunks depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.tiles import Media


@dataclass(frozen=True, slots=True)
class TilePlaces:
    """Those that decode look at no tile, of which there may be a hundred."""

    media: Sequence[Media] = ()
    are_spans: bool = False
    """Tokens of a tile see each other: they are computed in one step."""

    def seen(self, start: int, end: int) -> Sequence[Media]:
        """Those with tokens in [start, end)."""
        if not self._reach(start):
            return ()
        return [x for x in self.media if x.start < end and start < x.end]

    def n_together(self, start: int) -> int:
        """Tokens that are computed in the step that computes the one at ``start``."""
        if not (self.are_spans and self._reach(start)):
            return 1
        return next((x.end - start for x in self.media if x.start <= start < x.end), 1)

    def whole(self, start: int, n_tokens: int) -> int:
        """As many of the ``n_tokens`` from ``start`` on as end with a span, or outside of any."""
        if not self.are_spans:
            return n_tokens
        end = start + n_tokens
        starts = (x.start for x in self.media if x.start < end < x.end)
        return max(0, next(starts, end) - start)

    def _reach(self, place: int) -> bool:
        """Whether tokens at or behind ``place`` may stand for one."""
        return len(self.media) > 0 and place < self.media[-1].end


NO_TILES = TilePlaces()
