"""M-RoPE (Wang et al. 2024): where tokens stand in time, height and width, by which they turn.

That follows from a token's index and the images before it. A token of text stands at one place on
all axes, one behind the last; those of an image at one time, in the lines and columns of a grid
that begins there; and what follows it behind its longer side. So only executors know of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvasir.core.plan import Row, StepPlan
from kvasir.core.tiles import Media
from kvasir.exec.rows import depths
from kvasir.ir.ops.places import AXES

Places = NDArray[np.int32]


class _ImagesSeen(NamedTuple):
    """The images of a sequence."""

    media: tuple[Media, ...] = ()
    """Without pixels, which would stay until the slot is opened again."""
    end: int = 0
    """Of the last."""
    n_saved: int = 0
    """Places that all of them take fewer than they have tokens."""


class RopePositions:
    """Follows plans, in their order."""

    def __init__(self) -> None:
        self._slots: dict[int, _ImagesSeen] = {}

    def open(self, plan: StepPlan) -> None:
        for opening in plan.opens:
            media = tuple(replace(x, pixels=b"") for x in opening.media)
            end, n_saved = media[-1].end if media else 0, sum(map(_n_saved, media))
            self._slots[opening.slot] = _ImagesSeen(media, end, n_saved)

    def of(self, rows: Sequence[Row]) -> Places:
        """i32 [tokens, 3] of rows whose slots are open."""
        parts = [self._of_row(row) for row in rows]
        return np.concatenate(parts) if parts else np.zeros((0, AXES), np.int32)

    def _of_row(self, row: Row) -> Places:
        """Behind all images, as of whoever decodes, without a look at each."""
        seen = self._slots.get(row.slot, _ImagesSeen())
        indices = row.start + np.array(depths(row))
        if row.start < seen.end:
            return rope_positions(indices, seen.media)
        return np.repeat((indices - seen.n_saved).astype(np.int32)[:, None], AXES, axis=1)


def rope_positions(indices: NDArray[np.int64], media: Sequence[Media]) -> Places:
    """i32 [tokens, 3] of tokens by their index in a sequence with ``media``, in its order."""
    found = np.repeat(indices[:, None], AXES, axis=1)
    for image in media:
        _, columns = image.grid
        found[indices >= image.end] -= _n_saved(image)
        inside = (indices >= image.start) & (indices < image.end)
        own = indices[inside] - image.start
        line, column = np.divmod(own, columns)
        found[inside] += np.stack([-own, line - own, column - own], axis=1)
    return found.astype(np.int32)


def _n_saved(image: Media) -> int:
    return image.n_tokens - max(image.grid)
