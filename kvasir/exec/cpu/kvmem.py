"""The KV memory of all layers, in blocks: one allocation."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvasir.core.groups import group_of, state_group
from kvasir.core.kvtypes import KV_TYPES, KVType
from kvasir.core.sizes import EngineSizes
from kvasir.exec.cpu.codes import KV_PLACE, KV_TYPE_CODES
from kvasir.ir.program import KVSpec

LANES = 16
_FIELDS = ["offset", "block_bytes", "block_size", "n_kv_heads", "head_dim", "dtype", "latent"]
_TYPES = {KV_TYPE_CODES[name]: kind for name, kind in KV_TYPES.items()}


class KVMemory(msgspec.Struct, frozen=True):
    """Group after group; in a group block after block, so that a block is one run of bytes; in it
    layer after layer; of a layer K of every head [block/16, head_dim, 16], then V of every head
    [block, head_dim]; for types with scales K's [KV heads, block], then V's. Of a layer with
    latents its entries [block, head_dim], then their scales [block]. A layer with a state has that
    alone, and no heads.

    ``layout`` [layers]: ``KvPlace`` of native/program/spec.h.
    """

    memory: NDArray[np.uint8]
    """All bytes, one axis."""
    groups: tuple[NDArray[np.uint8], ...]
    """Views of it, per group [n_blocks, block bytes]."""
    layout: NDArray[np.void]
    n_moved: int
    """Of the first layers, whose entries move: those of a target."""

    @staticmethod
    def allocate(kv: Sequence[KVSpec], sizes: EngineSizes, n_moved: int | None = None) -> KVMemory:
        """``n_moved``: of the first layers, whose entries move; None: of all."""
        groups = sizes.groups
        places = [state_group(groups) if x.state_size else group_of(x.window, groups) for x in kv]
        layers = [
            x.state_bytes
            or x.n_vectors * sizes.block_size * KV_TYPES[x.dtype].head_bytes(x.head_dim)
            for x in kv
        ]
        steps = [
            sum(size for size, place in zip(layers, places, strict=True) if place == group)
            for group in range(len(sizes.groups))
        ]
        lengths = [x.n_blocks * step for x, step in zip(sizes.groups, steps, strict=True)]
        *nexts, n_bytes = accumulate(lengths, initial=0)
        memory = np.empty(n_bytes, np.uint8)
        views = tuple(
            memory[begin : begin + size].reshape(x.n_blocks, step)
            for begin, size, x, step in zip(nexts, lengths, sizes.groups, steps, strict=True)
        )
        layout = np.zeros(len(kv), KV_PLACE)
        for record, layer, place, size in zip(layout, kv, places, layers, strict=True):
            record["offset"], record["group"] = nexts[place], place
            record["block_bytes"], record["layer_bytes"] = steps[place], size
            record["block_size"], record["n_kv_heads"] = sizes.block_size, layer.n_kv_heads
            record["latent"] = layer.latent
            record["head_dim"], record["dtype"] = layer.head_dim, KV_TYPE_CODES[layer.dtype]
            nexts[place] += size
        return KVMemory(memory, views, layout, len(kv) if n_moved is None else n_moved)

    def copy_blocks(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Copy a block of every group, in every layer, whatever rows matter."""
        for blocks, src, dst in zip(self.groups, source, target, strict=True):
            blocks[dst] = blocks[src]

    def copy(self, group: int, source: tuple[int, int], target: tuple[int, int]) -> None:
        """Copy one token's K and V of every layer of a group that moves entries from (block, row)
        to (block, row)."""
        (from_block, from_row), (to_block, to_row) = source, target
        (from_tile, from_lane), (to_tile, to_lane) = divmod(from_row, LANES), divmod(to_row, LANES)
        layout = self.layout[: self.n_moved]
        layers = layout[layout["group"] == group][_FIELDS]
        for start, step, block, heads, dim, code, latent in layers.tolist():
            at = [start + index * step for index in (from_block, to_block)]
            kind = _TYPES[code]
            if latent:
                self._copy_entry(kind, block, dim, (at[0], from_row), (at[1], to_row))
                continue
            item, values = kind.item_bytes, heads * block * dim * kind.item_bytes
            if kind.scale_bytes:
                read, written = (
                    self.memory[x + 2 * values : x + 2 * values + 4 * heads * block]
                    .view(np.uint16)
                    .reshape(2 * heads, block)
                    for x in at
                )
                written[:, to_row] = read[:, from_row]
            k_shape = (heads, block // LANES, dim, LANES, item)
            k_from, k_to = (self.memory[x : x + values].reshape(k_shape) for x in at)
            k_to[:, to_tile, :, to_lane] = k_from[:, from_tile, :, from_lane]
            v_shape = (heads, block, dim * item)
            v_from, v_to = (self.memory[x + values : x + 2 * values].reshape(v_shape) for x in at)
            v_to[:, to_row] = v_from[:, from_row]

    def _copy_entry(
        self, kind: KVType, block: int, dim: int, source: tuple[int, int], target: tuple[int, int]
    ) -> None:
        """Of a layer with latents, from (start of a block, row) to another."""
        entry = dim * kind.item_bytes
        for width, behind in ((entry, 0), (kind.scale_bytes, block * entry)):
            read, written = (start + behind + row * width for start, row in (source, target))
            self.memory[written : written + width] = self.memory[read : read + width]
