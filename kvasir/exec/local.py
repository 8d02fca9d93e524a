"""What executors of this process have in common: a thread for their steps, a store for blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod

from kvasir.core.plan import Copy, Move, StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.exec.base import BlockStore, Handle
from kvasir.exec.order import before_rows
from kvasir.exec.steps import StepThread
from kvasir.exec.tables import SlotTables


class LocalExecutor(ABC):
    """Steps run one after the other on a thread of its own, which begins with the first."""

    def __init__(self, sizes: EngineSizes) -> None:
        self.sizes = sizes
        self._steps = StepThread()
        self._store: BlockStore | None = None
        self.tables = SlotTables(sizes)

    def attach(self, store: BlockStore) -> None:
        self._store = store

    def start(self, plan: StepPlan) -> Handle:
        return self._steps.submit(self.run, plan)

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
