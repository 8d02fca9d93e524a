"""Computes batches, in the background and after a restart: each line is answered once."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial

import msgspec

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.serve.batch.check import InputCheck
from kvasir.serve.batch.output import OutputFiles
from kvasir.serve.continued import RunLog
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.exchange import INLINE_BYTES
from kvasir.serve.generation import Nobody
from kvasir.serve.lifecycle import Unavailable
from kvasir.serve.reopened import reopened
from kvasir.serve.run import AnswerRun
from kvasir.serve.service import Service
from kvasir.serve.state import lines
from kvasir.serve.state.batches import BatchRecord, LineError, LineErrors, Status, StoredBatch
from kvasir.serve.state.database import StateError
from kvasir.serve.state.kept import Kept, decode
from kvasir.serve.state.lines import BEGIN, BatchLine, Place
from kvasir.serve.streams import EngineDown

logger = logging.getLogger("kvasir.batches")

AT_A_TIME = 2
"""Batches of one key; the others wait."""
AHEAD = 8
"""Lines that are read at a time: with their requests, which may be large."""
AGAIN_SECONDS = 5.0
"""After which a batch goes on that could not: the disk is full, or the engine is gone."""
MOST_SECONDS = 30.0
"""Between two attempts to find a place in the queue."""

_json = msgspec.json.Encoder()


@dataclass(slots=True)
class _OpenBatch:
    """A batch that has not ended."""

    task: asyncio.Task[None]
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when it is cancelled."""


class BatchRunner:
    """Lives in the event loop. ``slots`` lines of all batches are computed at a time."""

    def __init__(self, service: Service, slots: int) -> None:
        self._service = service
        self._batches = service.state.batches
        self._store = service.state.store
        self._progress = service.state.progress
        self._slots = asyncio.Semaphore(slots)
        self._turns: dict[bytes, asyncio.Semaphore] = {}
        self._lives: dict[str, _OpenBatch] = {}
        self._is_closed = False

    async def start(self) -> None:
        """Goes on with what a server before has left, and with what comes."""
        self._batches.tell = self.notice
        for batch_id in await self._batches.open_ids():
            self._begin(batch_id)

    def notice(self, batch: StoredBatch) -> None:
        """One that is new, which may have begun already, or that was cancelled."""
        self._begin(batch.id)
        if batch.status == "cancelling" and batch.id in self._lives:
            self._lives[batch.id].stopped.set()

    def _begin(self, batch_id: str) -> None:
        if batch_id not in self._lives and not self._is_closed:
            self._lives[batch_id] = _OpenBatch(asyncio.create_task(self._lead(batch_id)))

    async def close(self) -> None:
        """What was computed is kept, and the rest is for the next server."""
        self._is_closed = True
        tasks = [life.task for life in self._lives.values()]
        await self._progress.try_flush()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _lead(self, batch_id: str) -> None:
        """From where a batch is to its end."""
        try:
            while not await self._try(batch_id):
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            del self._lives[batch_id]

    async def _try(self, batch_id: str) -> bool:
        """Whether it has ended."""
        try:
            loaded = await self._batches.load(batch_id)
            if loaded is None:
                return True
            owner, record = loaded
            turn = self._turns.setdefault(owner, asyncio.Semaphore(AT_A_TIME))
            if not await self._has_turn(turn, record):
                await self._go(owner, record)
                return True
            try:
                await self._go(owner, record)
            finally:
                turn.release()
        except KvasirError as error:
            logger.error("batch %s waits: %s", batch_id, error.message)
            return False
        except Exception:
            logger.exception("batch %s failed", batch_id)
            told = LineError("internal_error", "internal error: see the server's log")
            await self._batches.finish(batch_id, "failed", [], None, errors=LineErrors((told,)))
        return True

    async def _has_turn(self, turn: asyncio.Semaphore, record: BatchRecord) -> bool:
        """Once it has, or is over: what there is of it to end waits for no other."""
        life = self._lives[record.batch.id]
        if record.batch.status == "cancelling":
            life.stopped.set()
        taken = asyncio.create_task(turn.acquire())
        stopped = asyncio.create_task(life.stopped.wait())
        try:
            while not taken.done() and self._over(record) is None:
                await asyncio.wait(
                    (taken, stopped),
                    timeout=self._left(record),
                    return_when=asyncio.FIRST_COMPLETED,
                )
            return taken.done()
        finally:
            for task in (taken, stopped):
                task.cancel()
            await asyncio.gather(taken, stopped, return_exceptions=True)

    def _left(self, record: BatchRecord) -> float:
        """Seconds until it expires."""
        return max(record.batch.expires_at - self._store.clock(), 0)

    def _over(self, record: BatchRecord) -> Status | None:
        """How it ends whatever is computed of it."""
        if self._lives[record.batch.id].stopped.is_set():
            return "cancelled"
        return None if self._left(record) else "expired"

    async def _go(self, owner: bytes, record: BatchRecord) -> None:
        """One that is over before it has begun has no lines."""
        batch_id, life = record.batch.id, self._lives[record.batch.id]
        if record.batch.status in ("validating", "cancelling") and not record.batch.in_progress_at:
            await self._store.run(lambda db: lines.clear(db, batch_id))
        begins = record.batch.status == "validating" and self._over(record) is None
        if begins and not await self._check(owner, record, life):
            return
        end = record.end  # of who was killed while finalizing
        if record.batch.status in ("validating", "in_progress"):
            end = await self._compute(record, life)
        elif record.batch.status == "cancelling":
            end = "cancelled"
        final = await self._batches.finalize(batch_id, end)
        if final is not None:
            files, usage = await OutputFiles(self._batches.files, final).write()
            await self._batches.finish(batch_id, final.end, files, usage)

    async def _check(self, owner: bytes, record: BatchRecord, life: _OpenBatch) -> bool:
        """Whether it goes on: its input is valid, or it was cancelled."""
        batch_id = record.batch.id
        check = InputCheck(self._service, record.batch, owner, life.stopped)
        await check.run()
        if life.stopped.is_set():
            await self._store.run(lambda db: lines.clear(db, batch_id))
            return True
        if check.errors:
            await self._store.run(lambda db: lines.clear(db, batch_id))
            errors = LineErrors(tuple(check.errors))
            await self._batches.finish(batch_id, "failed", [], None, errors=errors)
            return False
        began = {"in_progress_at": int(self._store.clock()), "model": check.model}
        await self._batches.change(batch_id, ("validating",), status="in_progress", **began)
        return True

    async def _compute(self, record: BatchRecord, life: _OpenBatch) -> Status:
        """How it ends: all lines are answered, or it was stopped before."""
        if (over := self._over(record)) is not None:
            return over
        work = asyncio.create_task(self._answer_lines(record.batch.id))
        stopped = asyncio.create_task(life.stopped.wait())
        try:
            await asyncio.wait(
                (work, stopped), timeout=self._left(record), return_when=asyncio.FIRST_COMPLETED
            )
            if work.done():
                work.result()
                return "completed"
            return "cancelled" if stopped.done() else "expired"
        finally:
            for task in (work, stopped):
                task.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)

    async def _answer_lines(self, batch_id: str) -> None:
        """Raises the first error that is not a line's own."""
        tasks: set[asyncio.Task[None]] = set()
        place = BEGIN
        try:
            while found := await self._following(batch_id, place):
                for line in found:
                    await self._slots.acquire()
                    _raise_first(tasks)
                    task = asyncio.create_task(self._answer_line(batch_id, line))
                    task.add_done_callback(lambda _: self._slots.release())
                    tasks.add(task)
                place = found[-1].place, found[-1].number
            while tasks:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                _raise_first(tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _following(self, batch_id: str, place: Place) -> list[BatchLine]:
        return await self._store.run(lambda db: lines.following(db, batch_id, place, AHEAD))

    async def _answer_line(self, batch_id: str, line: BatchLine) -> None:
        """Raises EngineDown, Unavailable, StateError: they are not the line's own."""
        is_large, number = len(line.request) > INLINE_BYTES, line.number
        work = partial(decode, line.request)
        kept = await asyncio.to_thread(work) if is_large else work()
        log = await self._progress.load(batch_id, number)
        with self._progress.keeping(log, batch_id, number):
            status, body = await self._answer(kept, log)
        await self._store.run(lambda db: lines.answer(db, batch_id, number, status, body))

    async def _answer(self, kept: Kept, log: RunLog) -> tuple[int, bytes]:
        """HTTP status and JSON."""
        dialect = DIALECTS[kept.resolved.dialect]
        while True:
            try:
                return 200, await self._whole(kept, log)
            except CapacityError as error:  # there will be room
                seconds = min(error.retry_after or 1.0, MOST_SECONDS)
            except (EngineDown, StateError, Unavailable):
                raise
            except KvasirError as error:
                return error.status, _json.encode(dialect.form(error))
            await asyncio.sleep(seconds)  # and nothing of the attempt is kept meanwhile

    async def _whole(self, kept: Kept, log: RunLog) -> bytes:
        whole = await reopened(self._service, kept)
        resolved, tokenizer = whole.resolved, whole.text.tokenizer
        grammar = DIALECTS[resolved.dialect].grammar(resolved, kept.envelope, tokenizer)
        run = AnswerRun(resolved, grammar, whole.model, tokenizer, Nobody(), log=log)
        return b"".join(await run.whole())


def _raise_first(tasks: set[asyncio.Task[None]]) -> None:
    """Lets go of those that are done. Raises what one of them has raised."""
    for task in [task for task in tasks if task.done()]:
        tasks.discard(task)
        task.result()
