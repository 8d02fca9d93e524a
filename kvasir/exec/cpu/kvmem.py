"""The paged KV memory of all layers: one allocation, touched only as pages are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.exec.base import ExecutorSpec
from kvasir.exec.cpu.records import DTYPES
from kvasir.ir.program import KVSpec

LANES = 16
ITEM_BYTES = {"f32": 4, "bf16": 2}


@dataclass(frozen=True, slots=True)
class KVMemory:
    """Layer after layer; a page holds K of every head [block/16, head_dim, 16], then V of every
    head [block, head_dim].

    ``layout`` [layers, 8]: offset of page 0, page bytes, V offset, bytes of a head, block size, KV
    heads, head size, dtype, as native/kernels.h's KvLayer.
    """

    memory: NDArray[np.uint8]
    layout: NDArray[np.int64]
    pages: tuple[NDArray[np.uint8], ...]
    """Views of ``memory``, per layer [n_blocks, page bytes]."""

    @staticmethod
    def allocate(kv: Sequence[KVSpec], spec: ExecutorSpec) -> KVMemory:
        rows, offset = [], 0
        for layer in kv:
            head = spec.block_size * layer.head_dim * ITEM_BYTES[layer.dtype]
            values = layer.n_kv_heads * head
            rows.append(
                (
                    offset,
                    2 * values,
                    values,
                    head,
                    spec.block_size,
                    layer.n_kv_heads,
                    layer.head_dim,
                    DTYPES[layer.dtype],
                )
            )
            offset += 2 * values * spec.n_blocks
        memory = np.empty(offset, np.uint8)
        ends = [*(row[0] for row in rows[1:]), offset]
        pages = [
            memory[row[0] : end].reshape(spec.n_blocks, row[1])
            for row, end in zip(rows, ends, strict=True)
        ]
        return KVMemory(memory, np.array(rows, np.int64), tuple(pages))

    def copy_page(self, source: int, target: int) -> None:
        """Copy a block in every layer: whole pages, a run of bytes each, whatever rows matter."""
        for pages in self.pages:
            pages[target] = pages[source]

    def copy(self, source: int, source_row: int, target: int, target_row: int) -> None:
        """Copy one token's K and V of every layer between pages."""
        for base, page_bytes, _, head_bytes, block, heads, head_dim, _ in self.layout.tolist():
            item = head_bytes // (block * head_dim)
            pages = self.memory[base : base + page_bytes * (max(source, target) + 1)]
            pages = pages.reshape(-1, 2, heads, block * head_dim * item)
            k = pages[:, 0].reshape(-1, heads, block // LANES, head_dim, LANES, item)
            v = pages[:, 1].reshape(-1, heads, block, head_dim * item)
            from_group, from_lane = divmod(source_row, LANES)
            to_group, to_lane = divmod(target_row, LANES)
            k[target, :, to_group, :, to_lane] = k[source, :, from_group, :, from_lane]
            v[target, :, target_row] = v[source, :, source_row]
