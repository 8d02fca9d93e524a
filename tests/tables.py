"""Block tables as their users come to have them."""

from __future__ import annotations

from kvasir.kv.table import BlockTable


def forked(table: BlockTable) -> BlockTable:
    """A table over the same blocks, as a request has that begins with those of another."""
    twin = BlockTable([line.pool for line in table._lines], table._block_size)
    twin.adopt(tuple([tuple(line.blocks) for line in table._lines]))
    return twin
