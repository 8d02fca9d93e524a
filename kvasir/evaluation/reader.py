"""Logits of a text, chunk by chunk, as the engine's own executor computes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import ConfigError, ModelError
from kvasir.core.groups import NO_BLOCK, KVGroup, blocks_for, first_block
from kvasir.core.params import TokenParams
from kvasir.core.plan import Row, SlotOpen, StepPlan, TableChange
from kvasir.exec.base import Executor
from kvasir.exec.cpu.executor import CpuExecutor

STEP = 128
"""Tokens of a step: f32 logits of 150,000 words are 77 MB then, and all may have logits: a step has
room for 64 tokens of the paths of drafts each, which rows of many logits are told as."""
_GREEDY = TokenParams(seed=0, max_tokens=1, temperature=0.0)


class ChunkReader:
    """One sequence at a time, in slot 0 of an engine that serves nobody else."""

    def __init__(self, executor: Executor) -> None:
        """Raises ConfigError for an executor that shows no logits."""
        if not isinstance(executor, CpuExecutor):
            raise ConfigError("only the cpu executor shows logits: leave --executor out")
        self._executor = executor
        self._sizes = executor.sizes
        self._logits = np.zeros((STEP, self._sizes.vocab_size), np.float32)

    def read(self, tokens: Sequence[int], begin: int, end: int, n: int) -> NDArray[np.float32]:
        """Logits after each of the last ``n`` of the tokens from ``begin`` to ``end``, at most
        ``STEP``, f32 [n, vocab], valid until the next call. Those before ``begin`` were read
        before; 0 begins another chunk."""
        opens: tuple[SlotOpen, ...] = ()
        if begin == 0:
            opens = (SlotOpen(0, _GREEDY, tuple(tokens[:1])),)
        at, filled = begin, 0
        while at < end:
            stop = min(end, self._reach(at))
            wanted = max(0, stop - max(at, end - n))
            row = Row(0, at, tuple(tokens[at:stop]), n_logits=wanted)
            plan = StepPlan(0, (row,), opens, self._tables(at, stop))
            logits = self._logits[filled : filled + wanted] if wanted else None
            self._executor.run(plan, logits=logits)
            at, filled, opens = stop, filled + wanted, ()
        return self._logits[:n]

    def steps(self, tokens: Sequence[int], until: int) -> Iterator[int]:
        """Reads a chunk from its beginning, without logits and up to record ``until`` of each step;
        yields how many tokens a step has read, while its values are there."""
        opens: tuple[SlotOpen, ...] = (SlotOpen(0, _GREEDY, tuple(tokens[:1])),)
        at = 0
        while at < len(tokens):
            stop = min(len(tokens), at + STEP, self._reach(at))
            row = Row(0, at, tuple(tokens[at:stop]), n_logits=0)
            self._executor.run(StepPlan(0, (row,), opens, self._tables(at, stop)), until=until)
            yield stop - at
            at, opens = stop, ()

    def write(self, first: int, n: int, seed: int) -> list[int]:
        """``n`` tokens: ``first``, and what the model draws behind it at temperature 1. Raises
        ModelError where its logits are no distribution."""
        params = TokenParams(seed=seed, max_tokens=n, temperature=1.0)
        tokens = [first]
        opens: tuple[SlotOpen, ...] = (SlotOpen(0, params, (first,)),)
        while len(tokens) < n:
            at = len(tokens) - 1
            row = Row(0, at, (tokens[-1],), out_index=at)
            result = self._executor.run(StepPlan(0, (row,), opens, self._tables(at, at + 1)))
            token, opens = result.outputs[0].token, ()
            if token < 0:
                raise ModelError(f"the logits after {len(tokens)} tokens are no numbers")
            tokens.append(token)
        return tokens

    def _reach(self, at: int) -> int:
        """Where a step from ``at`` ends at most: a window's blocks hold no more."""
        size = self._sizes.block_size
        windows = [x for x in self._sizes.groups if x.window and not x.state_bytes]
        return min(
            (size * (first_block(at, x.window, size) + x.n_blocks) for x in windows),
            default=self._sizes.max_model_len,
        )

    def _tables(self, begin: int, end: int) -> tuple[TableChange, ...]:
        pairs = enumerate(self._sizes.groups)
        return tuple(TableChange(0, i, 0, self._blocks(x, begin, end)) for i, x in pairs)

    def _blocks(self, group: KVGroup, begin: int, end: int) -> tuple[int, ...]:
        """Those that windows left are used again; a state goes on in its block."""
        size = self._sizes.block_size
        n = blocks_for(end, size)
        if group.state_bytes:
            return (0,) * n
        left = first_block(begin, group.window, size)
        return (NO_BLOCK,) * left + tuple(i % group.n_blocks for i in range(left, n))
