"""KV groups: layers whose cached entries live equally long have their blocks in common.

Three kinds, as data: ``full`` keeps every position, ``window(n)`` the last n, and ``state(bytes)``
no position at all but what a recurrent layer (Mamba, linear attention) makes of all of them.

A block of a state group holds a state. A layer reads the block of the token before, and writes the
block of its own token: in place inside a block of tokens, and at the end of one into the same block
again, or where a snapshot is wanted into another. What is left behind there is a snapshot that
nobody writes any more, and is shared, cached, evicted and found like the entries of a window of two
positions: the newest token's and the one before. A prefix can go on only where a snapshot is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.errors import KvasirError

NO_BLOCK = -1
"""Stands where a table has no block any more: nothing after it reads the entries."""

STATE_WINDOW = 2
"""Window of a state group: the token before may be in the block before."""

Tables = tuple[tuple[int, ...], ...]
"""Per group, block ids in the order of their tokens."""


def blocks_for(n_tokens: int, block_size: int) -> int:
    """Blocks that hold ``n_tokens``."""
    return -(-n_tokens // block_size)


def first_block(n_tokens: int, window: int, block_size: int) -> int:
    """Index of the first block that a token at position ``n_tokens``, or any later one, reads."""
    return max(0, n_tokens - window + 1) // block_size if window else 0


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Blocks 0 … n_blocks - 1, each with the entries of all layers of the group."""

    n_blocks: int
    window: int = 0
    """Positions that a token sees, itself included; 0: all up to itself."""
    state_bytes: int = 0
    """Bytes of a sequence's state in all layers of the group; 0: blocks hold entries of tokens."""
    stride: int = 0
    """Tokens between snapshots, whole blocks; 0: they stand at borders and branches alone."""
    drafts: int = 0
    """Drafted tokens of a row at most whose inputs are kept, for states; 0: no row is a draft."""
    span: int = 1
    """Tokens that one step computes at least."""

    def __post_init__(self) -> None:
        if self.state_bytes and self.window != STATE_WINDOW:
            raise KvasirError(f"a state group of window {self.window}: needs {STATE_WINDOW}")
        if (self.stride or self.drafts) and not self.state_bytes:
            raise KvasirError(
                f"snapshots every {self.stride} tokens, inputs kept of {self.drafts} drafted ones, "
                "of a group without states"
            )

    @property
    def kind(self) -> str:
        """``full``, ``window(n)`` or ``state(bytes)``."""
        if self.state_bytes:
            return f"state({self.state_bytes})"
        return f"window({self.window})" if self.window else "full"

    def needs(self, n_tokens: int, block_size: int) -> int:
        """Blocks without which a request of ``n_tokens`` cannot be computed, each step a span."""
        n_blocks = blocks_for(n_tokens, block_size)
        if not self.window:
            return n_blocks
        return min(n_blocks, 1 + blocks_for(self.window + self.span - 2, block_size))


def state_group(groups: Sequence[KVGroup]) -> int:
    """Index of the group that holds states. Raises KvasirError when there is none."""
    found = [i for i, group in enumerate(groups) if group.state_bytes]
    if not found:
        raise KvasirError(f"no KV group holds states: there are {list(groups)}")
    return found[0]


def group_of(window: int, groups: Sequence[KVGroup]) -> int:
    """Index of the group for a layer of ``window``: its own, else the one that keeps everything.

    Raises KvasirError when there is neither.
    """
    keep = [(i, group) for i, group in enumerate(groups) if not group.state_bytes]
    found = {group.window: i for i, group in reversed(keep)}
    if window not in found and 0 not in found:
        raise KvasirError(f"no KV group holds layers of window {window}: there are {list(groups)}")
    return found.get(window, found.get(0, 0))
