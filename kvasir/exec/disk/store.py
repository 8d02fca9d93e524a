"""Saved KV blocks, read and written on a thread of their own."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path

from kvasir.core.errors import KvasirError
from kvasir.core.messages import DiskStats
from kvasir.exec.disk.directory import Limits, SegmentDirectory
from kvasir.kv.tier import Fetch, group_of_name

_log = logging.getLogger(__name__)

MAX_QUEUED_BYTES = 256 * 2**20
"""Blocks copied out of the KV memory that wait to be written; more are dropped."""
FIRST_BANDWIDTH = 500e6
"""Bytes per second, read and verified, assumed before the first read."""
NEWEST_WEIGHT = 0.3
"""Of the last measurement in the moving average."""


class DiskStore:
    """A cache: what cannot be written or read is lost, logged once, and computed again.

    All files are used by one thread, which reads before it writes. The methods are for one other
    thread, but ``put`` and ``take``, which are for any.
    """

    def __init__(
        self, path: Path, limits: Limits, *, max_queued_bytes: int = MAX_QUEUED_BYTES
    ) -> None:
        """Raises ConfigError when the directory cannot be used."""
        self._sizes = limits.sizes
        self._max_queued_bytes = max_queued_bytes
        self._directory = SegmentDirectory(path, limits)
        self._path = path
        self.stats = DiskStats(n_bytes=self._directory.n_bytes)
        self._bandwidth = FIRST_BANDWIDTH
        self._changed = threading.Condition()
        self._fetches: deque[Fetch] = deque()
        self._queue: dict[bytes, bytes] = {}
        """Not written yet, in order."""
        self._queued_bytes = 0
        self._staged: dict[bytes, list[bytes]] = {}
        """Each as often as plans load it that have not run yet."""
        self._is_broken = False
        """Nothing more is written."""
        self._has_read_error = False
        self._is_clearing = False
        self._is_closing = False
        self._thread = threading.Thread(target=self._work, name="kvasir-disk", daemon=True)
        self._thread.start()

    def __contains__(self, name: object) -> bool:
        is_there = name in self._queue or name in self._directory
        return is_there and not self._is_clearing

    def __len__(self) -> int:
        """Blocks on disk."""
        return len(self._directory)

    def size(self, name: bytes) -> int:
        """Bytes of a block; 0 when it is not there."""
        queued = self._queue.get(name)
        return self._directory.size(name) if queued is None else len(queued)

    def seconds(self, n_bytes: int) -> float:
        """How long it takes to read ``n_bytes``, as measured."""
        return n_bytes / self._bandwidth

    @property
    def is_broken(self) -> bool:
        """Nothing more is written."""
        return self._is_broken

    @property
    def is_clearing(self) -> bool:
        """Blocks that were forgotten are still in their files."""
        return self._is_clearing

    def put(self, name: bytes, block: bytes) -> bool:
        """Save a block some time; False when it was dropped."""
        with self._changed:
            if name in self:
                return True
            is_full = self._queued_bytes + len(block) > self._max_queued_bytes
            if is_full or self._is_broken or self._is_closing:
                self.stats.n_dropped += 1
                return False
            self._queue[name] = block
            self._queued_bytes += len(block)
            self._changed.notify_all()
            return True

    def fetch(self, names: Sequence[bytes]) -> Fetch:
        """Begin to read blocks."""
        fetch = Fetch(tuple(names))
        with self._changed:
            self._fetches.append(fetch)
            self._changed.notify_all()
        return fetch

    def wait(self, seconds: float) -> None:
        """Until something was read or written, or ``seconds`` have passed."""
        with self._changed:
            self._changed.wait(seconds)

    def has_room(self) -> bool:
        """Half of the queue is empty."""
        return self._queued_bytes * 2 <= self._max_queued_bytes

    def stage(self, fetch: Fetch, names: Collection[bytes]) -> None:
        """Keep these blocks of a fetch until they are taken."""
        with self._changed:
            for name, block in zip(fetch.names, fetch.blocks, strict=False):
                if name in names:
                    self._staged.setdefault(name, []).append(block)
        self.stats.n_loaded += len(fetch.blocks)

    def take(self, name: bytes) -> bytes:
        """A block, as often as it was staged. Raises KvasirError when there is none left."""
        with self._changed:
            blocks = self._staged.pop(name, [])
            if not blocks:
                raise KvasirError(f"KV block {name.hex()} was not read from disk")
            block = blocks.pop()
            if blocks:
                self._staged[name] = blocks
        return block

    def clear(self) -> None:
        """Forget all blocks; their files are removed in the background."""
        with self._changed:
            self._queue.clear()
            self._queued_bytes = 0
            self._is_clearing = True
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Write what waits, for at most ``seconds`` and one block more."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
            while self._queue and not self._is_broken and time.monotonic() < deadline:
                self._changed.wait(deadline - time.monotonic())
            self.stats.n_dropped += len(self._queue)
            self._queue.clear()
            self._changed.notify_all()
        self._thread.join()
        self._directory.close()

    def _work(self) -> None:
        while self._work_once() or not self._is_closing:
            with self._changed:
                while not (self._is_clearing or self._fetches or self._queue or self._is_closing):
                    self._changed.wait()

    def _work_once(self) -> bool:
        """Read what was asked for first, or write a block; False when there is nothing to do."""
        with self._changed:
            if not (self._is_clearing or self._fetches or self._queue):
                return False
            fetch = self._fetches.popleft() if self._fetches else None
        if self._is_clearing:
            self._directory.clear()
            self.stats.n_bytes = 0
            self._is_clearing = False
        if fetch is not None:
            self._read(fetch)
        else:
            self._write_one()
        return True

    def _read(self, fetch: Fetch) -> None:
        began, n_bytes = time.perf_counter(), 0
        for name in fetch.names:
            if fetch.is_cancelled or self._is_closing:
                break
            block = self._queue.get(name)
            if block is None:
                block = self._read_one(name)
                n_bytes += len(block or b"")
            if block is None:
                break
            fetch.blocks.append(block)
        if n_bytes:
            self._measure(n_bytes / max(1e-9, time.perf_counter() - began))
        with self._changed:
            fetch.is_done = True
            self._changed.notify_all()

    def _read_one(self, name: bytes) -> bytes | None:
        block = None
        try:
            self._directory.touch(name)
            block = self._directory.read(name)
            if block is not None and len(block) != self._size_of(name):
                self._directory.forget(name)
                block = None
        except OSError as error:
            self._directory.forget(name)
            if not self._has_read_error:
                _log.warning("KV blocks in %s cannot be read: %s", self._path, error)
            self._has_read_error = True
        self.stats.n_damaged = self._directory.n_damaged
        return block

    def _size_of(self, name: bytes) -> int:
        """Bytes that a block of its group must have."""
        group = group_of_name(name)
        return self._sizes[group] if group < len(self._sizes) else -1

    def _measure(self, bandwidth: float) -> None:
        self._bandwidth += NEWEST_WEIGHT * (bandwidth - self._bandwidth)

    def _write_one(self) -> None:
        """The block stays in the queue, where it can be found, until it is written."""
        with self._changed:
            item = next(iter(self._queue.items()), None)
        if item is None:
            return
        name, block = item
        try:
            self._directory.append(name, block)
            self.stats.n_stored += 1
            self.stats.n_bytes = self._directory.n_bytes
        except OSError as error:
            self._give_up(error)
        with self._changed:
            if self._queue.pop(name, None) is not None:
                self._queued_bytes -= len(block)
            self._changed.notify_all()

    def _give_up(self, error: OSError) -> None:
        self._is_broken = True
        self.stats.n_dropped += 1
        _log.error(
            "KV blocks are not saved any more, requests go on without: %s: %s. Free some space in "
            "%s or name another directory with --kv-disk, then restart",
            type(error).__name__,
            error,
            self._path,
        )
        with self._changed:
            self.stats.n_dropped += max(0, len(self._queue) - 1)
            self._queue.clear()
            self._queued_bytes = 0
