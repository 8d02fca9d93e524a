"""Native programs of lowered ones, over one pool and one table of packed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir import _native
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.kvmem import KVMemory
from kvasir.exec.cpu.lower import Lowered, WeightUse
from kvasir.exec.cpu.records import pack_buffers, pack_records
from kvasir.exec.cpu.weights import NativeWeight
from kvasir.exec.inputs import MAX_TOP
from kvasir.ir.program import FloatArray, Program

LOGITS_TILE = 64
"""Logit rows computed at a time: bounds the logits to 64 x vocabulary floats."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What all programs of an executor share."""

    pool: _native.Pool
    isa: str
    sampler: _native.Sampler
    weights: Mapping[WeightUse, NativeWeight]
    hashes: bool = False
    """Record a hash of every logit row."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Where programs of some sizes have their values, keys and values."""

    sizes: EngineSizes
    kv: KVMemory
    arena: NDArray[np.uint8]

    def program(
        self,
        machine: Machine,
        program: Program,
        lowered: Lowered,
        arrays: Mapping[str, NDArray[np.generic]],
        n_logits: int,
    ) -> _native.Program:
        """``n_logits``: most logit rows of a step."""
        return _native.Program(
            machine.pool,
            machine.isa,
            machine.sampler,
            {**_sizes(lowered, program, self.sizes, machine.hashes), "max_logits": n_logits},
            pack_records(lowered.records),
            pack_buffers(lowered.buffers),
            [machine.weights[use] for use in lowered.weights],
            self.kv.memory,
            self.kv.layout.view(np.uint8),
            [np.ascontiguousarray(program.constants[x], np.float32) for x in lowered.tables],
            self.arena,
            arrays,
        )

    def floats(self, lowered: Lowered, value: str) -> FloatArray:
        """A view of an f32 value [most rows, columns]."""
        return self._view(lowered, value, np.dtype(np.float32)).view(np.float32)

    def integers(self, lowered: Lowered, value: str) -> NDArray[np.int32]:
        """A view of an i32 value [most rows, columns]."""
        return self._view(lowered, value, np.dtype(np.int32)).view(np.int32)

    def _view(self, lowered: Lowered, value: str, item: np.dtype[np.generic]) -> NDArray[np.uint8]:
        buffer = lowered.buffers[lowered.values[value]]
        n_bytes = buffer.max_rows * buffer.columns * item.itemsize
        return self.arena[buffer.offset : buffer.offset + n_bytes].reshape(buffer.max_rows, -1)


def logits_tile(sizes: EngineSizes) -> int:
    return min(LOGITS_TILE, sizes.max_num_batched_tokens)


def _sizes(
    lowered: Lowered, program: Program, sizes: EngineSizes, hashes: bool
) -> Mapping[str, int | bool]:
    heads = [
        op.integer("n_heads") // op.integer("n_kv_heads")
        for op in program.ops
        if op.kind == "attention"
    ]
    return {
        "max_tokens": sizes.max_num_batched_tokens,
        "logits_tile": logits_tile(sizes),
        "top_k": lowered.top_k,
        "head_dim_max": max((16, *(kv.head_dim for kv in program.kv))),
        "group_max": max(heads, default=1),
        "draft_floats": lowered.draft_floats(max((x.drafts for x in sizes.groups), default=0)),
        "hashes": hashes,
        "max_seqs": sizes.max_num_seqs,
        "max_blocks": sizes.max_blocks,
        "max_top": MAX_TOP,
        "vocab": sizes.vocab_size,
    }
