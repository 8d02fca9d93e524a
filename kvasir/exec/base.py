"""The contract between engine and executors."""

from __future__ import annotations

from typing import Protocol

from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.sampling.masks import Bits


class BlockStore(Protocol):
    """Keeps blocks under names."""

    def put(self, name: bytes, block: bytes) -> bool:
        """False when it is not kept."""
        ...

    def take(self, name: bytes) -> bytes:
        """One that was staged for a load."""
        ...


class Handle(Protocol):
    """A step that was started."""

    def fill(self, row: int, bits: Bits) -> None:
        """The mask of a logit row that is drawn under a constraint (``exec.masks``), once for each,
        from any thread; the row waits for it, the rest of the step does not. Keeps a copy."""
        ...

    def result(self) -> StepResult:
        """Waits for it. Raises what the step raised."""
        ...


class Executor(Protocol):
    """Runs plans one after the other, in the order in which they are started. Not thread-safe."""

    @property
    def sizes(self) -> EngineSizes: ...

    def attach(self, store: BlockStore) -> None:
        """Where plans save blocks to, and load them from. Before the first step."""
        ...

    def start(self, plan: StepPlan) -> Handle:
        """Begin one step, or queue it behind those that run. The caller keeps plans within
        ``sizes``."""
        ...

    def read_block(self, group: int, block: int) -> bytes:
        """What a KV block holds, in the executor's own layout. Between steps."""
        ...

    def close(self) -> None:
        """Wait for the steps that were started and give everything back. Rows that still wait for a
        mask draw nothing."""
        ...
