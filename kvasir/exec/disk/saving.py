"""Cached blocks are saved to disk while there is nothing else to do."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kvasir.core.plan import Transfer
from kvasir.exec.base import Executor
from kvasir.exec.disk.store import DiskStore

SAVE_BYTES = 8 * 2**20
"""Copied out between two looks for new requests: a few milliseconds."""
CLOSE_SECONDS = 2.0
"""What copying out, and then writing, may take when the engine closes."""
BUSY_SECONDS = 0.02
"""How long to wait for the disk before looking for new requests."""


class Saving:
    """Copies blocks of an executor to disk between its steps."""

    def __init__(self, executor: Executor, disk: DiskStore) -> None:
        executor.attach(disk)
        self._executor = executor
        self._disk = disk

    def wait(self) -> None:
        """For the disk, a little."""
        self._disk.wait(BUSY_SECONDS)

    def save(self, transfers: Iterator[Transfer], n_bytes: int = SAVE_BYTES) -> bool:
        """Save up to ``n_bytes`` of blocks, or wait a little while the disk is busy; False when
        there are no more, or nothing is written any more."""
        if self._disk.is_broken:
            return False
        if not self._disk.has_room():
            self._disk.wait(BUSY_SECONDS)
            return True
        for transfer in transfers:
            block = self._executor.read_block(transfer.group, transfer.block)
            self._disk.put(transfer.name, block)
            n_bytes -= len(block)
            if n_bytes <= 0:
                return True
        return False

    def save_all(self, transfers: Iterator[Transfer]) -> None:
        """Save as many blocks as a few seconds allow; the last thing before ``close``."""
        deadline = time.monotonic() + CLOSE_SECONDS
        while self.save(transfers) and time.monotonic() < deadline:
            pass

    @property
    def is_clearing(self) -> bool:
        """Blocks that were forgotten are still in their files."""
        return self._disk.is_clearing

    def close(self) -> None:
        self._disk.close(CLOSE_SECONDS)


def block_sizes(executor: Executor) -> tuple[int, ...]:
    """Bytes of a block of each KV group."""
    groups = range(len(executor.sizes.groups))
    return tuple(len(executor.read_block(group, 0)) for group in groups)
