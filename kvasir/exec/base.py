"""The contract between engine and executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvasir.core.plan import StepPlan, StepResult


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
    block_size: int
    """Tokens of one KV block."""
    numerics_id: str
    """Names the arithmetic: two executors with equal ids give equal bits."""


class Executor(Protocol):
    """Runs plans one after the other. Not thread-safe; ``run`` may be called from a worker
    thread."""

    @property
    def spec(self) -> ExecutorSpec: ...

    def run(self, plan: StepPlan) -> StepResult:
        """Compute one step. The caller keeps ``plan.rows`` within ``spec``."""
        ...

    def close(self) -> None: ...
