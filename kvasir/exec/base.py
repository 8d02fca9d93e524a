"""The contract between engine and executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kvasir.core.groups import KVGroup, groups_of
from kvasir.core.plan import Copy, Move, StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class ExecutorSpec:
    """Sizes an executor was built for. The engine never exceeds them."""

    vocab_size: int
    max_model_len: int
    """Tokens of one request, prompt and output together."""
    max_num_seqs: int
    """Slots are 0 … max_num_seqs - 1."""
    max_num_batched_tokens: int
    """Tokens of one step."""
    n_blocks: int
    """KV blocks of the layers that keep every position, and of windowed ones without a group in
    ``windows``."""
    block_size: int
    """Tokens of one KV block."""
    numerics_id: str
    """Names the arithmetic: two executors with equal ids give equal bits."""
    windows: tuple[KVGroup, ...] = ()
    """KV blocks of the layers that see a window only, for each window."""

    @property
    def groups(self) -> tuple[KVGroup, ...]:
        """In the order of a row's tables."""
        return groups_of(self.n_blocks, self.windows)


class Executor(Protocol):
    """Runs plans one after the other. Not thread-safe; ``run`` may be called from a worker
    thread."""

    @property
    def spec(self) -> ExecutorSpec: ...

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. The caller keeps ``plan.rows`` within ``spec``."""
        ...

    def read_block(self, group: int, block: int) -> bytes:
        """What a KV block holds, in the executor's own layout. Between steps."""
        ...

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """Fill a KV block with what ``read_block`` gave. Between steps."""
        ...

    def close(self) -> None: ...


def in_order(plan: StepPlan, move: Callable[[Move], None], copy: Callable[[Copy], None]) -> None:
    """What every executor does before the rows of a plan, whose saves and loads are done."""
    for one in plan.moves:
        move(one)
    for other in plan.copies:
        copy(other)
