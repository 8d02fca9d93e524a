"""The block tables of all slots, as the plans so far have told them."""

from __future__ import annotations

from itertools import count

import numpy as np
from numpy.typing import NDArray

from kvasir.core.groups import NO_BLOCK, Tables
from kvasir.core.plan import StepPlan
from kvasir.core.sizes import EngineSizes
from kvasir.exec.checks import need


class SlotTables:
    """A mirror of what the scheduler has; each plan says what changed."""

    def __init__(self, sizes: EngineSizes) -> None:
        shape = len(sizes.groups), sizes.max_num_seqs, sizes.max_blocks
        self.blocks: NDArray[np.int32] = np.full(shape, NO_BLOCK, np.int32)
        """[groups, slots, blocks of a request]."""
        self.versions = [0] * sizes.max_num_seqs
        """Of each slot's tables; no two that differ have the same, of any slots."""
        self._next = count(1)
        self._block_size = sizes.block_size

    def apply(self, plan: StepPlan) -> None:
        """Raises KvasirError on a change outside the tables."""
        n_groups, n_slots, n_blocks = self.blocks.shape
        for opening in plan.opens:
            need(0 <= opening.slot < n_slots, f"slot {opening.slot} of {n_slots} is opened")
            self.blocks[:, opening.slot] = NO_BLOCK
            self.versions[opening.slot] = next(self._next)
        for change in plan.tables:
            slot, group, end = change.slot, change.group, change.first + len(change.blocks)
            is_inside = 0 <= slot < n_slots and 0 <= group < n_groups
            need(is_inside and 0 <= change.first <= end <= n_blocks, f"no place for {change}")
            self.blocks[group, slot, change.first : end] = change.blocks
            self.versions[slot] = next(self._next)

    def of_rows(self, plan: StepPlan) -> dict[int, Tables]:
        """By slot, of each row as far as its tokens, and those that it drafts."""
        return {row.slot: self.of(row.slot, row.end) for row in plan.rows}

    def of(self, slot: int, n_tokens: int) -> Tables:
        """Per KV group the blocks of storage indices [0, n_tokens)."""
        need(0 <= slot < len(self.versions), f"a row of slot {slot} of {len(self.versions)}")
        n_blocks = -(-n_tokens // self._block_size)
        return tuple(map(tuple, self.blocks[:, slot, :n_blocks].tolist()))

    def place(self, group: int, slot: int, index: int) -> tuple[int, int]:
        """Block, and entry in it, of a storage index."""
        block, entry = divmod(index, self._block_size)
        return int(self.blocks[group, slot, block]), entry
