"""Responses in the background: they are computed whoever listens, and gone on with by the next
server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.serve.continued import RunLog
from kvasir.serve.dialects.response_answer import ResponsesGrammar, response_in
from kvasir.serve.fairlock import FairLock
from kvasir.serve.generation import Nobody
from kvasir.serve.lifecycle import Unavailable
from kvasir.serve.parts import Parts
from kvasir.serve.reopened import reopened
from kvasir.serve.run import AnswerRun, after
from kvasir.serve.service import Service
from kvasir.serve.state.database import StateError
from kvasir.serve.state.kept import Kept, decode
from kvasir.serve.streams import EngineDown
from kvasir.serve.telling import Telling

logger = logging.getLogger("kvasir.responses")

AGAIN_SECONDS = 5.0
"""After which a response goes on that could not: the disk is full, or the engine is gone."""
MOST_SECONDS = 30.0
"""Between two attempts to find a place in the queue."""


class InternalError(KvasirError):
    code = "internal_error"


class Deferred:
    """Lives in the event loop. ``slots`` responses are computed at a time, of keys in turns."""

    def __init__(self, service: Service, slots: int) -> None:
        self._service = service
        self._responses = service.state.responses
        self._progress = service.state.progress
        self._slots = FairLock(slots)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    async def start(self) -> None:
        """Goes on with what a server before has left, and with what comes."""
        self._responses.begin, self._responses.stop = self._begin, self._stop
        for response_id, owner in (await self._responses.open()).items():
            self._responses.live.setdefault(response_id, Telling(owner))
            self._begin(response_id)

    async def close(self) -> None:
        """What was computed is kept, and the rest is for the next server."""
        self._is_closed = True
        await self._progress.try_flush()
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def _begin(self, response_id: str) -> None:
        telling = self._responses.live[response_id]
        if self._is_closed:
            telling.end(_stopping())
        elif response_id not in self._tasks:
            self._tasks[response_id] = asyncio.create_task(self._lead(response_id, telling))

    def _stop(self, response_id: str) -> bool:
        task = self._tasks.get(response_id)
        return task is not None and task.cancel()

    async def _lead(self, response_id: str, telling: Telling) -> None:
        """From where a response is to its end."""
        try:
            while not await self._try(response_id, telling):
                await asyncio.sleep(AGAIN_SECONDS)
            telling.end()
        finally:
            telling.end(_stopping())
            del self._tasks[response_id], self._responses.live[response_id]

    async def _try(self, response_id: str, telling: Telling) -> bool:
        """Whether it has ended."""
        try:
            async with self._slots.taken(telling.owner):
                record = await self._responses.load(response_id)
                if record is None or record.is_done or record.kept is None:
                    return True
                telling.is_running = True
                await self._compute(response_id, decode(record.kept), telling)
        except KvasirError as error:
            logger.error("response %s waits: %s", response_id, error.message)
            return False
        except Exception:
            logger.exception("response %s is left as it is", response_id)
        return True

    async def _compute(self, response_id: str, kept: Kept, telling: Telling) -> None:
        """Raises EngineDown, Unavailable, StateError: they are not the response's own. Its end is
        told when it is stored."""
        log = await self._progress.load(response_id)
        failure: KvasirError | None = None
        with self._progress.keeping(log, response_id):
            try:
                ending = await self._told(kept, log, telling)
            except (EngineDown, StateError, Unavailable):
                raise
            except KvasirError as error:
                failure = error
            except Exception:
                logger.exception("response %s failed", response_id)
                failure = InternalError("internal error: see the server's log")
        if failure is not None:
            ending = await self._failed(kept, telling, failure)
        response = response_in(ending)
        assert response is not None
        await self._responses.finish(response_id, response, None if failure else log.events)
        if failure is not None and log.events and not telling.events:
            return telling.end(failure)  # the server before told more: each listener counts on
        telling.tell(ending)

    async def _told(self, kept: Kept, log: RunLog, telling: Telling) -> Sequence[Parts]:
        """Tells every event but those of the end, which it returns."""
        while True:
            try:
                return await self._attempt(kept, log, telling)
            except CapacityError as error:  # there will be room
                seconds = min(error.retry_after or 1.0, MOST_SECONDS)
            await asyncio.sleep(seconds)  # and nothing of the attempt is kept meanwhile

    async def _attempt(self, kept: Kept, log: RunLog, telling: Telling) -> Sequence[Parts]:
        run = await self._run(kept, log)
        n_told = len(telling.events)  # of an attempt before
        async with aclosing(run.batches()) as batches:
            async for batch in after(batches, n_told - 1):
                if response_in(batch) is not None:
                    return batch
                telling.tell(batch)
        raise AssertionError("a stream has an end")

    async def _run(self, kept: Kept, log: RunLog) -> AnswerRun:
        whole = await reopened(self._service, kept)
        tokenizer = whole.text.tokenizer
        grammar = ResponsesGrammar(whole.resolved, kept.envelope, tokenizer)
        return AnswerRun(whole.resolved, grammar, whole.model, tokenizer, Nobody(), log=log)

    async def _failed(self, kept: Kept, telling: Telling, error: KvasirError) -> list[Parts]:
        text, _ = await self._service.default.open()
        grammar = ResponsesGrammar(kept.resolved, kept.envelope, text.tokenizer)
        grammar.writer.number = len(telling.events)
        return [[grammar.failure(error)]]


async def followed(
    telling: Telling, grammar: ResponsesGrammar, number: int
) -> AsyncGenerator[list[Parts], None]:
    """The events from ``number`` on. Raises what they end with, which ``grammar`` words with the
    number behind the last."""
    grammar.writer.number = number
    async with aclosing(telling.follow(number)) as batches:
        async for batch in batches:
            grammar.writer.number += len(batch)
            yield batch


def _stopping() -> Unavailable:
    said = "the server stops: ask for the response again when it is back"
    return Unavailable(said, code="draining")
