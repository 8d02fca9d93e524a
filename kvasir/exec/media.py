"""Rows of tiles in place of embeddings: which tokens of a step stand for them, and which rows."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.core.encoder_cache import CACHE_BYTES, EncoderCache
from kvasir.core.errors import KvasirError
from kvasir.core.plan import StepPlan, TowerRun
from kvasir.core.tiles import Media
from kvasir.exec.canvas import TileRows
from kvasir.exec.rows import own_ends

Floats = NDArray[np.float32]
RowsOf = Callable[[Media], TileRows]


@dataclass(frozen=True, slots=True)
class MediaRun:
    """Tokens [at, at + n) of a step stand for rows [first, first + n) of a tile."""

    at: int
    media: Media
    first: int
    n: int


def blind(media: Media) -> TileRows:
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

    def tile_of(self, run: TowerRun) -> Media:
        """Raises KvasirError for a tile that the slot does not have."""
        for media in self._slots.get(run.slot, ()):
            if media.digest == run.digest:
                return media
        raise KvasirError(f"a run over a tile that slot {run.slot} does not have")

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


class _TileBegun:
    """A tile whose rows are being computed."""

    def __init__(self, digest: bytes, steps: TileRows) -> None:
        self.digest = digest
        self._steps = steps
        self._n_done = -1  # it stops before its first piece, too

    def go_on(self, end: int) -> Floats | None:
        """Until ``end`` pieces are done; its rows, when these are all."""
        try:
            while self._n_done < end:
                next(self._steps)
                self._n_done += 1
        except StopIteration as stop:
            rows: Floats = stop.value
            return rows
        return None


class MediaRows:
    """What a program with ``merge_embeds`` reads of a step. A tile's rows are computed by the
    towers of plans, or as far as these did not come when a step first needs one of them, and kept
    while there is room."""

    def __init__(
        self,
        rows_of: RowsOf,
        media: Sequence[Floats],
        is_media: NDArray[np.int32],
        ends: NDArray[np.int32] | None = None,
        limit: int = CACHE_BYTES,
    ) -> None:
        """``rows_of``: f32 [rows, columns] of a tile; ``media``, [T, columns] of a part of them
        each, and ``is_media`` [T] are written before every step, and where tokens of a tile see
        each other ``ends`` [T], where what a token sees ends; ``limit``: bytes that are kept."""
        self._rows_of = rows_of
        self._media = media
        self._is_media = is_media
        self._ends = ends
        self._slots = MediaSlots()
        self._cache = EncoderCache(limit)
        self._kept: dict[bytes, Floats] = {}
        self._job: _TileBegun | None = None
        self.n_computed = 0
        """Tiles so far."""
        self.n_unforeseen = 0
        """Of these, what rows needed before the towers of plans had finished it."""
        self.seconds = 0.0
        """That towers took for the newest step."""

    def write(self, plan: StepPlan) -> None:
        """Raises KvasirError where a plan has a part of what sees each other."""
        if plan.forgets:
            self._job = None
            self._kept.clear()
            self._cache.clear()
        self.seconds = 0.0
        self._is_media[: plan.n_tokens] = 0
        if self._ends is not None:
            self._ends[: plan.n_tokens] = own_ends(plan)
        runs = self._slots.of(plan)
        for tower in plan.towers:
            self._go_on(self._slots.tile_of(tower), tower.end)
        for run in runs:
            rows, column = self._rows(run.media)[run.first : run.first + run.n], 0
            for media in self._media:
                n_columns = media.shape[1]
                media[run.at : run.at + run.n] = rows[:, column : column + n_columns]
                column += n_columns
            self._is_media[run.at : run.at + run.n] = 1
            if self._ends is not None:
                self._ends[run.at : run.at + run.n] = _whole_end(run)
        for digest in self._cache.end_step():
            del self._kept[digest]

    def _rows(self, media: Media) -> Floats:
        if media.digest not in self._kept:
            self.n_unforeseen += 1
            self._go_on(media, sys.maxsize)
        self._cache.use(media.digest)
        return self._kept[media.digest]

    def _go_on(self, media: Media, end: int) -> None:
        digest = media.digest
        if digest in self._kept:
            return
        if self._job is None or self._job.digest != digest:
            self._job = _TileBegun(digest, self._rows_of(media))
        with self._timed():
            rows = self._job.go_on(end)
        if rows is not None:
            self._job = None
            self.n_computed += 1
            self._kept[digest] = rows
            self._cache.add(digest, rows.nbytes)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.seconds += time.monotonic() - began


def _whole_end(run: MediaRun) -> int:
    """Of a tile whose last tokens are in the step; the first may have been before."""
    media, n = run.media, run.first + run.n
    if n < media.n_tokens:
        raise KvasirError(
            f"a step has tokens {run.first} to {n} of {media.n_tokens} that see each other"
        )
    return media.end
