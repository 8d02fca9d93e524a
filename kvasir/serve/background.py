"""What a server does on its own: it forgets what has expired, keeps progress, computes batches and
responses in the background."""

from __future__ import annotations

import asyncio

from kvasir.serve.batch.runner import BatchRunner
from kvasir.serve.chats import go_on, leave
from kvasir.serve.dashboard import record
from kvasir.serve.deferred import Deferred
from kvasir.serve.routes_dashboard import newest
from kvasir.serve.service import Service
from kvasir.serve.streams import EngineDown


class Background:
    def __init__(self, service: Service) -> None:
        self._service = service
        self._runner: BatchRunner | None = None
        self._deferred: Deferred | None = None
        self._is_closed = False

    async def run(self) -> None:
        """Until it is cancelled."""
        state = self._service.state
        tasks = [
            asyncio.create_task(state.store.sweep()),
            asyncio.create_task(state.progress.run()),
            asyncio.create_task(record(self._service.monitor, lambda: newest(self._service))),
        ]
        try:
            info = await self._service.default.client.wait_ready()
            await state.store.mine()
            if not self._is_closed:
                slots = self._service.options.batch_lines or info.max_num_seqs
                self._runner = BatchRunner(self._service, slots)
                self._deferred = Deferred(self._service, slots)
                await self._runner.start()
                await self._deferred.start()
                await go_on(self._service)
            await asyncio.gather(*tasks)
        except EngineDown:  # the server ends
            return
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        """Nothing is computed any more that nobody waits for; the next server goes on with it."""
        self._is_closed = True
        if self._runner is not None:
            await self._runner.close()
        if self._deferred is not None:
            await self._deferred.close()

    async def end(self) -> None:
        """After the last request: the same of chats that nobody listens to any more."""
        await leave(self._service)
