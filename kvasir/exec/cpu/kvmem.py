"""The paged KV memory of all layers: one allocation, touched only as pages are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from kvasir.exec.base import ExecutorSpec
from kvasir.ir.kvtypes import KV_TYPES
from kvasir.ir.program import KVSpec

LANES = 16
NATIVE_TYPES = {"f32": 0, "bf16": 1, "int8": 2, "fp8_e4m3": 3, "fp8_e5m2": 4}
"""KvType of native/kernels.h."""
SCALED = frozenset(NATIVE_TYPES[name] for name, kind in KV_TYPES.items() if kind.scale_bytes)


@dataclass(frozen=True, slots=True)
class KVMemory:
    """Block after block, so that a block is one run of bytes; in it layer after layer; of a layer K
    of every head [block/16, head_dim, 16], then V of every head [block, head_dim]; for types with
    scales K's [KV heads, block], then V's.

    ``layout`` [layers, 8]: offset in block 0, block bytes, V offset, bytes of a head, block size,
    KV heads, head size, dtype, as native/kernels.h's KvLayer.
    """

    blocks: NDArray[np.uint8]
    """[n_blocks, block bytes]"""
    layout: NDArray[np.int64]

    @staticmethod
    def allocate(kv: Sequence[KVSpec], spec: ExecutorSpec) -> KVMemory:
        types = [KV_TYPES[x.dtype] for x in kv]
        heads = [
            spec.block_size * x.head_dim * kind.item_bytes
            for x, kind in zip(kv, types, strict=True)
        ]
        pages = [
            2 * x.n_kv_heads * spec.block_size * kind.head_bytes(x.head_dim)
            for x, kind in zip(kv, types, strict=True)
        ]
        offsets = [0, *accumulate(pages)]
        rows = [
            (
                offset,
                offsets[-1],
                layer.n_kv_heads * head,
                head,
                spec.block_size,
                layer.n_kv_heads,
                layer.head_dim,
                NATIVE_TYPES[layer.dtype],
            )
            for layer, head, offset in zip(kv, heads, offsets, strict=False)
        ]
        blocks = np.empty((spec.n_blocks, offsets[-1]), np.uint8)
        return KVMemory(blocks, np.array(rows, np.int64))

    @property
    def memory(self) -> NDArray[np.uint8]:
        """All bytes, one axis."""
        return self.blocks.reshape(-1)

    def copy_block(self, source: int, target: int) -> None:
        """Copy a block in every layer, whatever rows matter."""
        self.blocks[target] = self.blocks[source]

    def copy(self, source: int, source_row: int, target: int, target_row: int) -> None:
        """Copy one token's K and V of every layer between blocks."""
        from_group, from_lane = divmod(source_row, LANES)
        to_group, to_lane = divmod(target_row, LANES)
        for offset, _, values, head_bytes, block, heads, head_dim, kind in self.layout.tolist():
            item = head_bytes // (block * head_dim)
            if kind in SCALED:
                scales = slice(offset + 2 * values, offset + 2 * values + 4 * heads * block)
                read, written = (
                    self.blocks[index, scales].view(np.uint16).reshape(2 * heads, block)
                    for index in (source, target)
                )
                written[:, target_row] = read[:, source_row]
            k_shape = (heads, block // LANES, head_dim, LANES, item)
            v_shape = (heads, block, head_dim * item)
            k_from, k_to, v_from, v_to = (
                self.blocks[index, begin : begin + values].reshape(shape)
                for begin, shape in ((offset, k_shape), (offset + values, v_shape))
                for index in (source, target)
            )
            k_to[:, to_group, :, to_lane] = k_from[:, from_group, :, from_lane]
            v_to[:, target_row] = v_from[:, source_row]
