"""From a model file to logits with the native executor."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.core.plan import StepPlan
from kvasir.exec.cpu.executor import CpuExecutor, CpuSettings
from tests.loading import Loaded, sizes_for, whole_prompt

LEVELS = tuple(_native.levels(emulated=True))
"""Of this machine, with those whose instructions are partly functions."""
BEST = _native.levels()[-1]


def native(model: Loaded, level: str = BEST, threads: int = 2) -> CpuExecutor:
    sizes = sizes_for(model.config)
    settings = CpuSettings(threads, level, hashes=True)
    return CpuExecutor(model.program, model.binding, sizes, settings)


def plan_logits(executor: CpuExecutor, plan: StepPlan) -> NDArray[np.float32]:
    """Raw logits of the plan's logit rows, f32 [rows, vocab]."""
    logits = np.zeros((plan.n_logits, executor.sizes.vocab_size), np.float32)
    executor.run(plan, logits=logits)
    return logits


def native_logits(
    model: Loaded, tokens: tuple[int, ...], level: str = BEST, threads: int = 2
) -> NDArray[np.float32]:
    """Logits after every token, f32 [tokens, vocab]."""
    executor = native(model, level, threads)
    plan = whole_prompt(tokens, n_groups=len(executor.sizes.groups))
    return plan_logits(executor, plan)
