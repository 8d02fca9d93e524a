"""A batch begins once, and stops when it was cancelled, whatever is told of it in which order."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import cast

from kvasir.serve.batch.runner import BatchRunner
from kvasir.serve.service import Service
from kvasir.serve.state.batches import Batches
from kvasir.serve.state.entries import Quota
from kvasir.serve.state.files import Files
from kvasir.serve.state.store import Store

OWNER = b"somebody"


class WaitingRunner(BatchRunner):
    """Computes nothing: a batch ends when it is stopped."""

    def __init__(self, batches: Batches) -> None:
        state = SimpleNamespace(batches=batches, store=batches.store, progress=None)
        super().__init__(cast(Service, SimpleNamespace(state=state)), 1)
        self.begun: list[str] = []
        self.ended = asyncio.Event()

    async def _lead(self, batch_id: str) -> None:
        self.begun.append(batch_id)
        await self._lives[batch_id].stopped.wait()
        self.ended.set()


def test_a_batch_that_was_found_before_it_was_told_of() -> None:
    store = Store(None, Quota(9, 9_999, 9, 9_999))

    async def run() -> None:
        batches = Batches(store, Files(store, max_bytes=99, days=1), 1)
        async with batches.files.upload(OWNER) as upload:
            await upload.write(b"x")
            file = await upload.keep("input", "batch", None)
        batch = await batches.create(
            OWNER, file, endpoint="/v1/x", window=("24h", 9), output_seconds=None, metadata=None
        )
        runner = WaitingRunner(batches)
        await runner.start()
        runner.notice(batch)
        await asyncio.sleep(0)
        assert runner.begun == [batch.id] and not runner.ended.is_set()
        await batches.cancel(batch.id, OWNER)
        async with asyncio.timeout(10):
            await runner.ended.wait()
        assert runner.begun == [batch.id]

    asyncio.run(run())
    store.close()
