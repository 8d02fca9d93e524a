"""The disk tier: which evicted blocks are saved, and which saved ones are worth loading.

Names and decisions only; bytes pass through it unseen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

import msgspec

from kvasir.config.resolved import PreemptionMode
from kvasir.core.groups import first_block
from kvasir.core.messages import DiskStats
from kvasir.core.plan import Transfer
from kvasir.kv.keys import KeyChain

MAX_LOADING_BYTES = 1 << 30
"""Blocks read from disk that wait in memory for their step, of all requests together."""
MAX_LOAD_SECONDS = 10.0
"""What takes longer to read is computed."""
RETRY = 32
"""Of the hits that are not worth loading, as it seems, one in so many is loaded: it is measured
again what loading costs."""


@dataclass(slots=True, eq=False)
class Fetch:
    """Blocks on their way from disk, in order; it ends at the first that cannot be had."""

    names: tuple[bytes, ...]
    blocks: list[bytes] = field(default_factory=list)
    """Those read so far, verified."""
    is_done: bool = False
    is_cancelled: bool = False


class Disk(Protocol):
    """A store of blocks by name that reads and writes in the background."""

    stats: DiskStats

    def __contains__(self, name: bytes) -> bool: ...

    def size(self, name: bytes) -> int:
        """Bytes of a block; 0 when it is not there."""
        ...

    def seconds(self, n_bytes: int) -> float:
        """How long it takes to read ``n_bytes``, as measured."""
        ...

    def fetch(self, names: Sequence[bytes]) -> Fetch:
        """Begin to read blocks."""
        ...

    def stage(self, fetch: Fetch, names: Collection[bytes]) -> None:
        """Keep these blocks of a fetch until the step that loads them."""
        ...

    def clear(self) -> None:
        """Forget all blocks."""
        ...


def block_name(key: bytes, group: int) -> bytes:
    """Of the block of one group that a key stands for."""
    return key + group.to_bytes(4, "little")


def group_of_name(name: bytes) -> int:
    """The group in ``block_name``."""
    return int.from_bytes(name[-4:], "little")


class OnDisk(msgspec.Struct, frozen=True):
    """What disk holds of a sequence after the blocks that memory holds."""

    depth: int
    """Full blocks of the sequence in memory and on disk together."""
    names: tuple[tuple[int, int, bytes], ...] = ()
    """(index of the block, group, name) of all that is to be loaded."""
    since: float = 0.0
    """When they were asked for."""


class _Loading(msgspec.Struct, frozen=True):
    start: int
    """Blocks that memory held when it began."""
    reach: int
    """Blocks of which it held all but states and windows then, and which are not loaded."""
    on_disk: OnDisk
    fetch: Fetch
    n_bytes: int

    @property
    def is_whole(self) -> bool:
        return len(self.fetch.blocks) == len(self.fetch.names)


class DiskTier:
    """What is asked of a disk for the requests that wait, called owners here."""

    def __init__(
        self,
        disk: Disk,
        windows: Sequence[int],
        block_size: int,
        prefill_seconds: Callable[[int, int], float],
        *,
        mode: PreemptionMode = "auto",
        max_loading_bytes: int = MAX_LOADING_BYTES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``windows``: of each KV group. ``prefill_seconds(n_tokens, start)``: what it costs to
        compute tokens instead of loading them. ``mode``: how preempted requests come back."""
        self.disk = disk
        self._windows = tuple(windows)
        self._block_size = block_size
        self._prefill_seconds = prefill_seconds
        self._mode = mode
        self._max_bytes = max_loading_bytes
        self._clock = clock
        self._saves: list[Transfer] = []
        self._loading: dict[Hashable, _Loading] = {}
        self._until: dict[Hashable, float] = {}
        """Owners wait for blocks no longer than this."""
        self._refused: dict[Hashable, int] = {}
        """Blocks in memory of owners for whom computing the next ones is faster."""
        self._n_refused = 0

    @property
    def is_loading(self) -> bool:
        """Blocks are on their way."""
        return any(not loading.fetch.is_done for loading in self._loading.values())

    def evicted(self, key: bytes, group: int, block: int) -> None:
        """A block is about to be given to another owner: save it first, with the next plan."""
        name = block_name(key, group)
        if name not in self.disk:
            self._saves.append(Transfer(name, group, block))

    def take_saves(self) -> tuple[Transfer, ...]:
        """For the next plan."""
        saves = tuple(self._saves)
        self._saves.clear()
        return saves

    def unsaved(self, cached: Iterable[tuple[bytes, int, int]]) -> Iterator[Transfer]:
        """Those of the cached blocks, given by key, group and block, that are not on disk."""
        for key, group, block in cached:
            name = block_name(key, group)
            if name not in self.disk:
                yield Transfer(name, group, block)

    def stats(self) -> DiskStats:
        """A snapshot."""
        return copy(self.disk.stats)

    def reset(self) -> None:
        """Forget all that is saved, and what is on its way."""
        for owner in list(self._loading):
            self._cancel(owner)
        self._saves.clear()
        self.disk.clear()

    def find(
        self,
        owner: Hashable,
        chain: KeyChain,
        start: int,
        stop: int,
        *,
        was_preempted: bool,
        reach: int = 0,
    ) -> OnDisk | None:
        """Blocks from ``start`` on, before ``stop``, that are ready to be loaded; none of them when
        computing is faster. None while they are read: ``owner`` asks again. ``reach``: blocks that
        memory has in all groups that keep everything."""
        nothing = OnDisk(start)
        loading = self._current(owner, start, reach)
        if loading is not None and loading.fetch.is_done:
            return loading.on_disk
        if self._refused.get(owner) == start or self._clock() >= self._until.get(owner, inf):
            self._cancel(owner)
            return nothing
        if loading is None and not self._must_wait(chain, start, stop):
            on_disk = self._on_disk(chain, start, stop, reach)
            if on_disk.depth == start:
                return nothing
            n_bytes = sum(self.disk.size(name) for _, _, name in on_disk.names)
            if not self._is_worth(n_bytes, start, on_disk.depth, was_preempted):
                self._refused[owner] = start
                return nothing
            fetch = self.disk.fetch([name for _, _, name in on_disk.names])
            held = min(reach, on_disk.depth)
            self._loading[owner] = _Loading(start, held, on_disk, fetch, n_bytes)
        self._until.setdefault(owner, self._clock() + MAX_LOAD_SECONDS)
        return None

    def load(self, owner: Hashable, on_disk: OnDisk, names: Collection[bytes]) -> None:
        """``owner`` starts with the blocks that were found; those of ``names`` are loaded."""
        loading = self._loading.get(owner)
        if loading is not None and loading.on_disk is on_disk:
            self.disk.stage(loading.fetch, names)
            self.disk.stats.n_hit += (on_disk.depth - loading.start) * self._block_size
        self.forget(owner)

    def forget(self, owner: Hashable) -> None:
        """``owner`` waits no more."""
        self._cancel(owner)
        self._until.pop(owner, None)
        self._refused.pop(owner, None)

    def _current(self, owner: Hashable, start: int, reach: int) -> _Loading | None:
        """What is on its way, unless memory holds more or less by now, or a block was damaged."""
        loading = self._loading.get(owner)
        if loading is None:
            return None
        if loading.start != start or loading.reach > reach:
            self.forget(owner)
            return None
        if loading.fetch.is_done and not loading.is_whole:
            self._cancel(owner)
            return None
        return loading

    def _cancel(self, owner: Hashable) -> None:
        loading = self._loading.pop(owner, None)
        if loading is not None:
            loading.fetch.is_cancelled = True

    def _must_wait(self, chain: KeyChain, start: int, stop: int) -> bool:
        """What comes next is on its way for another owner, or takes memory that this one needs.

        Not when it has come: its owner may wait behind this one for ever.
        """
        coming = [x for x in self._loading.values() if not x.fetch.is_done]
        if start >= stop or not coming:
            return False
        name = block_name(chain.keys(stop)[start], 0)
        if name not in self.disk:
            return False
        is_coming = any(name in loading.fetch.names for loading in coming)
        return is_coming or self._room() < self.disk.size(name)

    def _room(self) -> int:
        return self._max_bytes - sum(loading.n_bytes for loading in self._loading.values())

    def _is_worth(self, n_bytes: int, start: int, stop: int, was_preempted: bool) -> bool:
        if was_preempted and self._mode != "auto":
            return self._mode == "swap"
        size = self._block_size
        computing = self._prefill_seconds((stop - start) * size, start * size)
        if self.disk.seconds(n_bytes) <= computing:
            return True
        self._n_refused += 1
        return self._n_refused % RETRY == 0

    def _on_disk(self, chain: KeyChain, start: int, stop: int, reach: int) -> OnDisk:
        """The longest run on disk that ends with all blocks that a next token sees. Before
        ``reach`` the blocks of groups that keep everything are in memory."""
        keys, room = chain.keys(stop), self._room()
        runs, depth = [0] * len(self._windows), start
        for i in range(start, stop):
            names = [block_name(keys[i], group) for group in range(len(self._windows))]
            both = list(zip(names, self._windows, strict=True))
            names = [name for name, window in both if window or i >= reach]
            is_there = [name in self.disk or not (w or i >= reach) for name, w in both]
            room -= sum(map(self.disk.size, names))
            runs = [run + 1 if there else 0 for run, there in zip(runs, is_there, strict=True)]
            firsts = [self._first(start, i + 1, window) for window in self._windows]
            if room < 0 or any(
                not run and not w for run, w in zip(runs, self._windows, strict=True)
            ):
                break
            if all(run > i - first for run, first in zip(runs, firsts, strict=True)):
                depth = i + 1
        wanted = [
            (i, group, block_name(keys[i], group))
            for i in range(start, depth)
            for group, window in enumerate(self._windows)
            if i >= self._first(start, depth, window) and (window or i >= reach)
        ]
        return OnDisk(depth, tuple(wanted), self._clock())

    def _first(self, start: int, depth: int, window: int) -> int:
        """First block from ``start`` on that a token after ``depth`` blocks sees."""
        return max(start, first_block(depth * self._block_size, window, self._block_size))
