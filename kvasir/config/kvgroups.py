"""How the KV memory is divided between layers that keep every position and those of a window."""

from __future__ import annotations

from bisect import bisect_right
from math import sqrt

import msgspec

from kvasir.core.groups import STATE_WINDOW, KVGroup, blocks_for

CACHED_SHARE = 0.25
"""Blocks for the ends of cached prefixes in a windowed group, as a share of the blocks of layers
that keep every position."""
SNAPSHOT_SHARE = 1 / 16
"""The same for snapshots of states at the ends of prompts and turns and where prefixes branch:
four for each 1,000 tokens."""
PREFIX_TOKENS = 2048
"""Of a cached prefix that the default distance of snapshots is best for."""


class GroupBytes(msgspec.Struct, frozen=True):
    """Layers of one window, 0 for those that keep every position."""

    window: int
    n_layers: int
    block_bytes: int
    """Of one block in all these layers."""
    state_bytes: int = 0
    """Of a sequence's state in all these layers; 0: they keep entries of tokens."""
    stride: int = 0
    """Tokens between snapshots of it; 0: there are none but those at borders and branches."""

    def group(self, n_blocks: int) -> KVGroup:
        return KVGroup(n_blocks, self.window, self.state_bytes, self.stride)


class KVDivision(msgspec.Struct, frozen=True):
    """Groups by window, and the work that windowed ones are sized for."""

    groups: tuple[GroupBytes, ...]
    block_size: int
    n_seqs: int
    n_step_tokens: int
    is_caching: bool

    def divide(self, n: int) -> tuple[KVGroup, ...]:
        """The groups that hold ``n`` blocks of tokens: a windowed one takes no more than requests
        can use, and its share for what is cached."""
        return tuple(group.group(self._blocks(n, group)) for group in self.groups)

    def n_bytes(self, n: int) -> int:
        """Of the groups that hold ``n`` blocks of tokens."""
        return sum(self._blocks(n, group) * group.block_bytes for group in self.groups)

    def most(self, n_bytes: int) -> int:
        """Blocks of tokens that fit ``n_bytes``."""
        states = sum(group.block_bytes for group in self.groups if group.state_bytes)
        windowed = sum(group.block_bytes for group in self.groups if group.window) - states
        full = sum(group.block_bytes for group in self.groups) - windowed - states
        share = CACHED_SHARE if self.is_caching or not full else 0.0
        least = full + share * windowed or self._share(self.groups[-1]) * states
        bound = int((n_bytes + windowed + states) / least) + 1
        return bisect_right(range(bound + 1), n_bytes, key=self.n_bytes) - 1

    def _blocks(self, n: int, group: GroupBytes) -> int:
        if not group.window:
            return n
        cached = self._cached(n, group) if self.is_caching else 0
        held = window_blocks(group.window, self.block_size, self.n_seqs, self.n_step_tokens)
        if group.state_bytes:  # one to go on in, and one that a step not yet committed leaves
            held = 2 * self.n_seqs
        return min(n, held + cached)

    def _cached(self, n: int, group: GroupBytes) -> int:
        """Snapshots of states take no more memory than the blocks that they go with: of large
        ones there are few, those that save most."""
        share, beside = int(n * self._share(group)), sum(x.block_bytes for x in self.groups[:-1])
        if not group.state_bytes or not beside:
            return share
        return min(share, n * beside // group.block_bytes)

    def _share(self, group: GroupBytes) -> float:
        """Blocks of a windowed group for what is cached, for each block of tokens."""
        if not group.state_bytes:
            return CACHED_SHARE
        return SNAPSHOT_SHARE + (self.block_size / group.stride if group.stride else 0.0)


def best_stride(state_bytes: int, token_bytes: int, block_size: int) -> int:
    """Tokens between snapshots, whole blocks, by which cached bytes save most computing.

    A prefix of L tokens takes L * token_bytes, and L / stride snapshots. One that ends anywhere
    saves all but stride / 2 of its tokens, which cost equally much each; their number per byte,
    (L - stride / 2) / (L * (token_bytes + state_bytes / stride)), is greatest here.
    """
    stride = float(PREFIX_TOKENS)
    if token_bytes:
        root = sqrt(state_bytes**2 + 2.0 * token_bytes * PREFIX_TOKENS * state_bytes)
        stride = (root - state_bytes) / token_bytes
    return max(1, round(stride / block_size)) * block_size


def window_blocks(window: int, block_size: int, n_seqs: int, n_tokens: int) -> int:
    """Blocks that ``n_seqs`` requests hold at most in a group of ``window``, while two steps of
    ``n_tokens`` are planned and not committed: however long they are, none lacks a block."""
    return n_seqs * (blocks_for(window, block_size) + 2) + blocks_for(2 * n_tokens, block_size)


def divide_layers(
    windows: tuple[int, ...],
    token_bytes: int,
    block_size: int,
    length: int,
    state_bytes: tuple[int, ...] = (),
    layer_bytes: tuple[int, ...] = (),
) -> tuple[GroupBytes, ...]:
    """Groups of the layers, which cache ``layer_bytes`` of a token, or where that is empty equally
    many. ``windows``: per layer, 0 for none, empty for layers that are all alike; one of
    ``length`` tokens or more keeps all.
    ``state_bytes``: per layer with a state; they are one group, the last."""
    layers = [window if window < length else 0 for window in windows] or [0]
    alike = (token_bytes * block_size // len(layers),) * len(layers)
    both = list(zip(layers, [n * block_size for n in layer_bytes] or alike, strict=True))
    groups = [
        GroupBytes(window, layers.count(window), sum(n for w, n in both if w == window))
        for window in sorted(set(layers))
    ]
    if state_bytes:
        total = sum(state_bytes)
        groups.append(GroupBytes(STATE_WINDOW, len(state_bytes), total, total))
    return tuple(groups)
