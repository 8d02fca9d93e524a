"""What executors of this process have in common: a thread for their steps, a store for blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.core.plan import Copy, Move, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.base import BlockStore, Fills, Handle
from kvasir.exec.masks import ConstrainedSlots, StepMasks
from kvasir.exec.media import MediaRows
from kvasir.exec.order import before_rows
from kvasir.exec.steps import StepThread
from kvasir.exec.tables import SlotTables
from kvasir.sampling.masks import Bits

M = TypeVar("M", bound=StepMasks)


class _Started(msgspec.Struct, frozen=True):
    future: Future[StepResult]
    masks: StepMasks | None

    @property
    def fills(self) -> Fills | None:
        return None if self.masks is None else self.masks.fills

    def fill(self, row: int, bits: Bits) -> None:
        if self.masks is None:
            raise KvasirError("no row of the step waits for a mask")
        self.masks.fill(row, bits)

    @property
    def is_done(self) -> bool:
        return self.future.done()

    def result(self) -> StepResult:
        return self.future.result()


class LocalExecutor(ABC, Generic[M]):
    """Steps run one after the other on a thread of its own, which begins with the first."""

    new_masks: Callable[[int, Sequence[int], int], M]
    """Of so many logit rows those that wait for one, and the size of the vocabulary."""

    def __init__(self, sizes: EngineSizes) -> None:
        self.sizes = sizes
        self._steps = StepThread()
        self._store: BlockStore | None = None
        self.tables = SlotTables(sizes)
        self._constrained = ConstrainedSlots()
        self.masks: M | None = None
        """Of the running step; None when none of its rows has one."""
        self._media: MediaRows | None = None
        """None for a target that takes no rows in place of embeddings."""

    def attach(self, store: BlockStore) -> None:
        self._store = store

    def start(self, plan: StepPlan) -> Handle:
        rows = self._constrained.rows(plan)
        size = self.sizes.vocab_size
        masks = self.new_masks(plan.n_logits, tuple(rows), size) if rows else None
        return _Started(self._steps.submit(partial(self._step, masks), plan, masks), masks)

    def _step(self, masks: M | None, plan: StepPlan) -> StepResult:
        self.masks = masks
        return self.run(plan)

    @abstractmethod
    def run(self, plan: StepPlan) -> StepResult:
        """One step, on the caller's thread. No other may be running."""

    def prepare(self, plan: StepPlan) -> None:
        """All that comes before the rows, but the changes of tables."""
        before_rows(plan, self, self._store)

    @abstractmethod
    def read_block(self, group: int, block: int) -> bytes: ...

    @abstractmethod
    def write_block(self, group: int, block: int, data: bytes) -> None: ...

    @abstractmethod
    def move(self, move: Move) -> None: ...

    @abstractmethod
    def copy(self, copy: Copy) -> None: ...

    def close(self) -> None:
        self._steps.close()
