"""M-RoPE (Wang et al. 2024): where tokens stand in time, height and width, by which they turn.

That follows from a token's index and the images before it. A token of text stands at one place on
all axes, one behind the last; those of an image at one time, in the lines and columns of a grid
that begins there; and what follows it behind its longer side. So only executors know of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvasir.core.plan import Row, StepPlan
from kvasir.core.tiles import Media
from kvasir.exec.rows import depths
from kvasir.ir.ops.places import AXES

Places = NDArray[np.int32]


class RopePositions:
    """Follows plans, in their order."""

    def __init__(self) -> None:
        self._slots: dict[int, tuple[Media, ...]] = {}

    def open(self, plan: StepPlan) -> None:
        for opening in plan.opens:
            # without pixels, which would stay until the slot is opened again
            self._slots[opening.slot] = tuple(replace(x, pixels=b"") for x in opening.media)

    def of(self, rows: Sequence[Row]) -> Places:
        """i32 [tokens, 3] of rows whose slots are open."""
        parts = [
            rope_positions(row.start + np.array(depths(row)), self._slots.get(row.slot, ()))
            for row in rows
        ]
        return np.concatenate(parts) if parts else np.zeros((0, AXES), np.int32)


def rope_positions(indices: NDArray[np.int64], media: Sequence[Media]) -> Places:
    """i32 [tokens, 3] of tokens by their index in a sequence with ``media``, in its order."""
    found = np.repeat(indices[:, None], AXES, axis=1)
    for image in media:
        lines, columns = image.grid
        found[indices >= image.end] -= image.n_tokens - max(lines, columns)
        inside = (indices >= image.start) & (indices < image.end)
        own = indices[inside] - image.start
        line, column = np.divmod(own, columns)
        found[inside] += np.stack([-own, line - own, column - own], axis=1)
    return found.astype(np.int32)
