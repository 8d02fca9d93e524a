"""Rows of tiles in place of embeddings: which tokens of a step stand for them, and which rows."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import KvasirError
from kvasir.core.plan import StepPlan
from kvasir.core.tiles import Media
from kvasir.exec.rows import own_ends

Floats = NDArray[np.float32]
RowsOf = Callable[[Media], Floats]
TILE_CACHE_BYTES = 64 * 2**20
"""Of the newest tiles' rows: 17 of 64 rows of 2048 numbers, as one image has, are 9 MB."""
LEAST_KEPT = 2
"""Tiles: of one that is computed in several chunks all rows are made with the first."""


@dataclass(frozen=True, slots=True)
class MediaRun:
    """Tokens [at, at + n) of a step stand for rows [first, first + n) of a tile."""

    at: int
    media: Media
    first: int
    n: int


def blind(media: Media) -> Floats:
    """Of a program that could see, without a tower."""
    raise KvasirError("there is no tower for images")


class MediaSlots:
    """Follows plans, in their order."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[Media, ...]] = {}

    def of(self, plan: StepPlan) -> list[MediaRun]:
        for opening in plan.opens:
            self._slots.pop(opening.slot, None)
            if opening.media:
                self._slots[opening.slot] = opening.media
        return list(self._of_rows(plan)) if self._slots else []

    def _of_rows(self, plan: StepPlan) -> Iterator[MediaRun]:
        before = 0
        for row in plan.rows:
            seen = self._slots.get(row.slot, ())
            for media in seen:
                begin, end = max(row.start, media.start), min(row.end, media.end)
                if begin < end:
                    at = before + begin - row.start
                    own = begin - media.start
                    for token, first, n in media.runs(own, end - media.start):
                        yield MediaRun(at + token - own, media, first, n)
            if seen and row.start >= seen[-1].end:
                del self._slots[row.slot]  # what is drawn again is no token before the newest row
            before += len(row.tokens)


class MediaRows:
    """What a program with ``merge_embeds`` reads of a step. A tile's rows are computed when a step
    first needs one of them, all at once, and kept while there is room."""

    def __init__(
        self,
        rows_of: RowsOf,
        media: Sequence[Floats],
        is_media: NDArray[np.int32],
        ends: NDArray[np.int32] | None = None,
        limit: int = TILE_CACHE_BYTES,
    ) -> None:
        """``rows_of``: f32 [rows, columns] of a tile; ``media``, [T, columns] of a part of them
        each, and ``is_media`` [T] are written before every step, and where tokens of a tile see
        each other ``ends`` [T], where what a token sees ends; ``limit``: bytes that are kept."""
        self._rows_of = rows_of
        self._media = media
        self._is_media = is_media
        self._ends = ends
        self._limit = limit
        self._slots = MediaSlots()
        self._kept: OrderedDict[bytes, Floats] = OrderedDict()
        self._n_bytes = 0
        self._is_stale = False
        self.n_computed = 0
        """Tiles so far."""
        self.seconds = 0.0
        """That towers took for the newest step."""

    def write(self, plan: StepPlan) -> None:
        """Raises KvasirError where a plan has a part of what sees each other."""
        if self._is_stale:
            self._is_stale = False
            self._kept.clear()
            self._n_bytes = 0
        self.seconds = 0.0
        self._is_media[: plan.n_tokens] = 0
        if self._ends is not None:
            self._ends[: plan.n_tokens] = own_ends(plan)
        for run in self._slots.of(plan):
            rows, column = self._rows(run.media)[run.first : run.first + run.n], 0
            for media in self._media:
                n_columns = media.shape[1]
                media[run.at : run.at + run.n] = rows[:, column : column + n_columns]
                column += n_columns
            self._is_media[run.at : run.at + run.n] = 1
            if self._ends is not None:
                self._ends[run.at : run.at + run.n] = _whole_end(run)

    def forget(self) -> None:
        """Plans that are written later find no rows of those before them. From any thread."""
        self._is_stale = True

    def _rows(self, media: Media) -> Floats:
        rows = self._kept.pop(media.digest, None)
        if rows is None:
            began = time.monotonic()
            rows = self._rows_of(media)
            self.seconds += time.monotonic() - began
            self.n_computed += 1
            self._n_bytes += rows.nbytes
        self._kept[media.digest] = rows
        while self._n_bytes > self._limit and len(self._kept) > LEAST_KEPT:
            _, gone = self._kept.popitem(last=False)
            self._n_bytes -= gone.nbytes
        return rows


def _whole_end(run: MediaRun) -> int:
    """Of a tile whose last tokens are in the step; the first may have been before."""
    media, n = run.media, run.first + run.n
    if n < media.n_tokens:
        raise KvasirError(
            f"a step has tokens {run.first} to {n} of {media.n_tokens} that see each other"
        )
    return media.end
