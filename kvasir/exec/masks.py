"""Which logit rows of a step wait for a mask, and the masks as they come."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from kvasir import _native
from kvasir.core.errors import KvasirError
from kvasir.core.params import mask_words
from kvasir.core.plan import Row, StepPlan
from kvasir.exec.base import Fills
from kvasir.exec.rows import logit_rows
from kvasir.sampling.masks import Bits

WAIT_SECONDS = 600.0
"""That a step waits for its masks: whoever would bring them has died, or hangs. Who is slow ends
long before (``engine.masking``)."""
NONE, COMING, HERE = (_native.ENUMS["MaskFlag"][name] for name in ("none", "coming", "here"))
"""Of a logit row: it has no mask, waits for it, has it."""
WAITING, MADE, REFUSED = (
    _native.ENUMS["FillState"][name] for name in ("waiting", "made", "refused")
)
"""Of what ``Fills`` make: nobody has begun it, it is there, or the library gave up."""


class ConstrainedSlots:
    """Follows plans, in their order."""

    def __init__(self) -> None:
        self._slots: set[int] = set()

    def rows(self, plan: StepPlan) -> Mapping[int, tuple[int, tuple[int, ...]]]:
        """Slot and path of the rows of ``plan`` that are drawn under a constraint, by their index
        among its logit rows. A path is what follows the outputs that the plan before gave."""
        for opening in plan.opens:
            if opening.params.constraint:
                self._slots.add(opening.slot)
            elif self._slots:
                self._slots.discard(opening.slot)
        return self._rows(plan) if self._slots else {}

    def _rows(self, plan: StepPlan) -> dict[int, tuple[int, tuple[int, ...]]]:
        found: dict[int, tuple[int, tuple[int, ...]]] = {}
        first = 0
        for row in plan.rows:
            if row.slot in self._slots:
                found.update((first + i, (row.slot, path)) for i, path in _drawn(row))
            first += row.n_logits
        return found


def _drawn(row: Row) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Which of its logit rows are, and their paths without the reference that each may begin with:
    known when the masks are made."""
    if row.n_logits == 1 and not row.targets:
        yield 0, ()
        return
    for i, one in enumerate(logit_rows(row)):
        if one.target < 0:
            yield i, one.path[1:] if one.path and one.path[0] < 0 else one.path


class StepMasks(Protocol):
    """Of one step. Filled by threads that make masks, read by those that compute it."""

    def __init__(self, n_logits: int, rows: Sequence[int], vocab_size: int) -> None:
        """``rows``: those that have a mask, of ``n_logits``. Of the others no memory is touched."""

    @property
    def fills(self) -> Fills | None:
        """What makes them within the step."""
        ...

    def fill(self, row: int, bits: Bits) -> None:
        """Raises KvasirError for a row that waits for none."""
        ...

    def abandon(self) -> None:
        """The others draw nothing, whoever would have filled them."""
        ...


class PlainMasks(StepMasks):
    """In arrays, with a lock."""

    def __init__(self, n_logits: int, rows: Sequence[int], vocab_size: int) -> None:
        self.bits = np.empty((n_logits, mask_words(vocab_size)), np.uint32)
        self.ready = np.full(n_logits, NONE, np.int32)
        self.ready[list(rows)] = COMING
        self._changed = threading.Condition()

    @property
    def fills(self) -> Fills | None:
        return None

    def fill(self, row: int, bits: Bits) -> None:
        with self._changed:
            if self.ready[row] != COMING:
                raise _waits_for_none(row)
            self._write(row, bits)
            self._changed.notify_all()

    def _write(self, row: int, bits: Bits) -> None:
        self.bits[row] = bits
        self.ready[row] = HERE

    def abandon(self) -> None:
        with self._changed:
            for row in np.flatnonzero(self.ready == COMING):
                self._write(int(row), np.zeros_like(self.bits[row]))
            self._changed.notify_all()

    def wait(self, row: int) -> Bits | None:
        """The mask of a row; None when it has none. Raises KvasirError when it does not come."""
        if self.ready[row] == NONE:
            return None
        with self._changed:
            if not self._changed.wait_for(lambda: self.ready[row] == HERE, WAIT_SECONDS):
                raise KvasirError(f"the mask of logit row {row} did not come")
        mask: Bits = self.bits[row]
        return mask


class NativeMasks(StepMasks):
    """Where threads read them that take no lock, and that make some of them. Between two steps the
    caches are cold: a call of NumPy would take longer than all that is done here."""

    def __init__(self, n_logits: int, rows: Sequence[int], vocab_size: int) -> None:
        self.native = _native.Fills(n_logits, rows, mask_words(vocab_size))

    @property
    def fills(self) -> Fills | None:
        return self.native

    def fill(self, row: int, bits: Bits) -> None:
        if not self.native.bring(row, bits):
            raise _waits_for_none(row)

    def abandon(self) -> None:
        self.native.abandon()


def _waits_for_none(row: int) -> KvasirError:
    return KvasirError(f"logit row {row} waits for no mask")
