"""The contract between engine and executors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvasir.core.plan import StepPlan, StepResult
from kvasir.core.sizes import EngineSizes
from kvasir.sampling.masks import Bits, NativeFill


class BlockStore(Protocol):
    """Keeps blocks under names."""

    def put(self, name: bytes, block: bytes) -> bool:
        """False when it is not kept."""
        ...

    def take(self, name: bytes) -> bytes:
        """One that was staged for a load."""
        ...


Filled = tuple[int, bool, int, float, float]


class Fills(Protocol):
    """Masks that the threads of a step make for it themselves. Who makes one holds up no item, and
    takes no core from who does."""

    def put(self, fills: Sequence[tuple[int, NativeFill]]) -> None:
        """By logit row what makes its mask, and is called by these threads: once in a step."""
        ...

    def wait(self, seconds: float, each: float) -> Sequence[Filled]:
        """When none is under way: of each its state (``exec.masks``), whether its matcher was
        cancelled, the one token that is allowed or -1, the seconds that it took, and those of the
        processor. None begins after ``seconds``; one that takes longer than ``each`` is cancelled.
        A row whose mask is refused may draw nothing; one still waits whose mask nobody began."""
        ...


class Handle(Protocol):
    """A step that was started."""

    @property
    def fills(self) -> Fills | None:
        """None: the step has no such threads, or no row that waits."""
        ...

    def fill(self, row: int, bits: Bits) -> None:
        """The mask of a logit row that is drawn under a constraint (``exec.masks``), once for each,
        from any thread; the row waits for it, the rest of the step does not. Keeps a copy."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether ``result`` would not wait."""
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
