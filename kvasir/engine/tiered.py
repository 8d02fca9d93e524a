"""An executor whose KV blocks are saved to disk, and come back from there."""

from __future__ import annotations

import time
from collections.abc import Iterator

from kvasir.core.plan import StepPlan, StepResult, Transfer
from kvasir.exec.base import Executor, ExecutorSpec
from kvasir.exec.disk.store import DiskStore

SAVE_BYTES = 8 * 2**20
"""Copied out between two looks for new requests: a few milliseconds."""
CLOSE_SECONDS = 2.0
"""What copying out, and then writing, may take when the engine closes."""
BUSY_SECONDS = 0.02
"""How long to wait for the disk before looking for new requests."""


class TieredExecutor:
    """Does the transfers of each plan, then what the inner executor does."""

    def __init__(self, inner: Executor, disk: DiskStore) -> None:
        self._inner = inner
        self._disk = disk

    @property
    def spec(self) -> ExecutorSpec:
        return self._inner.spec

    def run(self, plan: StepPlan) -> StepResult:
        for transfer in plan.saves:
            self._save(transfer)
        for transfer in plan.loads:
            self.write_block(transfer.group, transfer.block, self._disk.take(transfer.name))
        return self._inner.run(plan)

    def read_block(self, group: int, block: int) -> bytes:
        return self._inner.read_block(group, block)

    def write_block(self, group: int, block: int, data: bytes) -> None:
        self._inner.write_block(group, block, data)

    def wait(self) -> None:
        """For the disk, a little."""
        self._disk.wait(BUSY_SECONDS)

    def save(self, transfers: Iterator[Transfer], n_bytes: int = SAVE_BYTES) -> bool:
        """Save blocks between steps, up to ``n_bytes`` of them, or wait a little while the disk is
        busy; False when there are no more, or nothing is written any more."""
        if self._disk.is_broken:
            return False
        if not self._disk.has_room():
            self._disk.wait(BUSY_SECONDS)
            return True
        for transfer in transfers:
            n_bytes -= self._save(transfer)
            if n_bytes <= 0:
                return True
        return False

    def save_all(self, transfers: Iterator[Transfer]) -> None:
        """Save as many blocks as a few seconds allow; the last thing before ``close``."""
        deadline = time.monotonic() + CLOSE_SECONDS
        while self.save(transfers) and time.monotonic() < deadline:
            pass

    def close(self) -> None:
        self._disk.close(CLOSE_SECONDS)
        self._inner.close()

    def _save(self, transfer: Transfer) -> int:
        """Bytes that were copied out."""
        data = self.read_block(transfer.group, transfer.block)
        self._disk.put(transfer.name, data)
        return len(data)


def block_sizes(executor: Executor) -> tuple[int, ...]:
    """Bytes of a block of each KV group."""
    groups = range(len(executor.spec.groups))
    return tuple(len(executor.read_block(group, 0)) for group in groups)
