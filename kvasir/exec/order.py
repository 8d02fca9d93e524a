"""The one order in which a step touches KV entries: saves, loads, moves, copies, rows."""

from __future__ import annotations

from typing import Protocol

from kvasir.core.plan import Copy, Move, StepPlan
from kvasir.exec.base import BlockStore
from kvasir.exec.checks import need


class Entries(Protocol):
    """How the KV entries of an executor are touched."""

    def read_block(self, group: int, block: int) -> bytes:
        """What a KV block holds, in a layout of their own."""
        ...

    def write_block(self, group: int, block: int, data: bytes) -> None:
        """Fill a KV block with what ``read_block`` gave."""
        ...

    def move(self, move: Move) -> None: ...

    def copy(self, copy: Copy) -> None: ...


def before_rows(plan: StepPlan, entries: Entries, store: BlockStore | None) -> None:
    """All that comes before the rows. Raises KvasirError when blocks are to be kept nowhere."""
    if plan.saves or plan.loads:
        need(store is not None, f"step {plan.step} saves or loads blocks without a store")
    if store is not None:
        for save in plan.saves:
            store.put(save.name, entries.read_block(save.group, save.block))
        for load in plan.loads:
            entries.write_block(load.group, load.block, store.take(load.name))
    for move in plan.moves:
        entries.move(move)
    for copy in plan.copies:
        entries.copy(copy)
