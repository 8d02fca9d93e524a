"""What the native program that pools reads of a step, and the vectors that come of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.core.plan import StepPlan
from kvasir.core.sizes import EngineSizes
from kvasir.exec.pooling import NO_POOL, PooledSlots, StepPool, Sums
from kvasir.ir.ops.checks import width
from kvasir.ir.program import Program


@dataclass(slots=True)
class PooledRows:
    """Its logit rows are the tokens that are pooled."""

    sums: Sums
    arrays: dict[str, NDArray[np.generic]]
    slots: PooledSlots
    step: StepPool = NO_POOL

    @classmethod
    def of(cls, program: Program, sizes: EngineSizes) -> PooledRows:
        sums = Sums(sizes.max_num_seqs, width(program.values[program.outputs[0]]))
        n = sizes.max_num_batched_tokens
        arrays: dict[str, NDArray[np.generic]] = {
            **{name: np.zeros(n, np.int32) for name in ("logit_token", "logit_slot")},
            "path_begin": np.zeros(n + 1, np.int32),
            "sums": sums.array,
        }
        return cls(sums, arrays, PooledSlots())

    def begin(self, plan: StepPlan) -> int:
        """How many tokens of ``plan`` are pooled."""
        self.step = step = self.slots.of(plan)
        n = len(step.tokens)
        self.arrays["logit_token"][:n], self.arrays["logit_slot"][:n] = step.tokens, step.slots
        self.sums.begin(step)
        return n

    def vectors(self) -> tuple[bytes, ...]:
        return self.sums.vectors(self.step)
