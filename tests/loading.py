"""From a model file to logits with the reference executor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kvasir.checkpoints import build_program, config_from, ignorable
from kvasir.core.groups import STATE_WINDOW, KVGroup
from kvasir.core.params import TokenParams
from kvasir.core.plan import SlotOpen, StepPlan
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.passes import lower_passes
from kvasir.exec.reference import ReferenceExecutor, load_weights
from kvasir.ir.program import Program
from kvasir.models import ModelConfig
from kvasir.weights.bind import Binding, bind
from kvasir.weights.input_order import with_input_order
from kvasir.weights.source import open_model
from tests.planned import placed, step_plan

BLOCK = 16
GREEDY = TokenParams(seed=0, max_tokens=1, temperature=0.0)


@dataclass(frozen=True, slots=True)
class Loaded:
    config: ModelConfig
    program: Program
    binding: Binding


def load(
    path: Path,
    dtype: str | None = None,
    max_positions: int = 128,
    kv_dtype: str | None = None,
) -> Loaded:
    """The model's program: raw when ``dtype`` is None, else lowered with it and ``kv_dtype``."""
    source = open_model(path)
    config = config_from(source)
    program = build_program(config, max_positions=max_positions)
    program, binding = with_input_order(program, bind(program, source, ignorable(config)))
    if dtype is not None:
        formats = binding.formats()
        program = lower_passes(program, dtype=dtype, formats=formats, kv_dtype=kv_dtype)
    return Loaded(config, program, binding)


def sizes_for(config: ModelConfig, n_seqs: int = 4, max_len: int = 128) -> EngineSizes:
    """Room for ``n_seqs`` requests of ``max_len`` tokens."""
    n_bytes, n_blocks = sum(config.state_bytes), n_seqs * max_len // BLOCK
    states = (KVGroup(n_blocks, STATE_WINDOW, n_bytes),) if n_bytes else ()
    return EngineSizes(
        vocab_size=config.vocab_size,
        max_model_len=max_len,
        max_num_seqs=n_seqs,
        max_num_batched_tokens=n_seqs * max_len,
        n_blocks=n_blocks,
        block_size=BLOCK,
        windows=states,
    )


def reference(model: Loaded) -> ReferenceExecutor:
    weights = load_weights(model.program, model.binding)
    return ReferenceExecutor(model.program, weights, sizes_for(model.config))


def whole_prompt(
    tokens: tuple[int, ...], n_logits: int | None = None, n_groups: int = 1
) -> StepPlan:
    """One step with logits for the last ``n_logits`` tokens, by default for every one."""
    blocks = (tuple(range(-(-len(tokens) // BLOCK))),) * n_groups
    row = placed(0, 0, tokens, blocks, n_logits=n_logits or len(tokens))
    return step_plan(0, (row,), (SlotOpen(0, GREEDY, tokens),))


def reference_logits(model: Loaded, tokens: tuple[int, ...]) -> NDArray[np.float32]:
    """Logits after every token, f32 [tokens, vocab]."""
    executor = reference(model)
    plan = whole_prompt(tokens, n_groups=len(executor.sizes.groups))
    values = executor.trace(plan)
    logits = values[model.program.outputs[0]]
    assert isinstance(logits, np.ndarray)
    return logits
