"""Stored chat completions: each is computed whoever listens, told from anywhere, and gone on with
by the next server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from msgspec import structs

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.serve import sse
from kvasir.serve.answer import Grammar
from kvasir.serve.asked import Keep
from kvasir.serve.continued import RunLog
from kvasir.serve.dialects.table import DIALECTS
from kvasir.serve.exchange import Exchange
from kvasir.serve.generation import Nobody
from kvasir.serve.jobs import Server
from kvasir.serve.lifecycle import Unavailable
from kvasir.serve.long import beside
from kvasir.serve.parts import Parts
from kvasir.serve.reopened import Reopened, reopened
from kvasir.serve.run import AnswerRun, after
from kvasir.serve.service import Service
from kvasir.serve.state.database import StateError
from kvasir.serve.state.kept import Kept, decode, later
from kvasir.serve.streams import EngineDown
from kvasir.serve.telling import Telling
from kvasir.serve.text import TextModel
from kvasir.tokenizer.messages import ChatMessage

logger = logging.getLogger("kvasir.chats")

AGAIN_SECONDS = 5.0
"""After which a chat goes on that could not: the disk is full, or the engine is gone."""
MOST_SECONDS = 30.0
"""Between two attempts to find a place in the queue."""


@dataclass(slots=True)
class ChatRun:
    """One stored chat, from where it is to its end."""

    service: Service
    kept: Kept
    listener: Nobody = field(default_factory=Nobody)
    timeout: int | None = None
    submitted: Callable[[int], None] = lambda first: None
    waits: bool = False
    """For a place in the queue: nobody would hear that there is none."""
    telling: Telling = field(default_factory=Telling)

    def start(self) -> Telling:
        chats, name = self.service.state.chats, self.kept.envelope.id
        chats.live[name] = self.telling
        chats.tasks[name] = asyncio.create_task(self._lead(name))
        return self.telling

    async def _lead(self, name: str) -> None:
        chats, run = self.service.state.chats, self
        try:
            while not await run._try(name):
                telling = Telling(self.telling.owner)
                run = ChatRun(self.service, lasting(self.kept), waits=True, telling=telling)
                chats.live[name] = run.telling
                await asyncio.sleep(AGAIN_SECONDS)
        finally:
            said = "the server stops: ask for the chat again when it is back"
            run.telling.end(Unavailable(said, code="draining"))
            del chats.live[name], chats.tasks[name]

    async def _try(self, name: str) -> bool:
        """Whether it has ended. Who listens hears what holds it up; it goes on for others."""
        try:
            await self._compute(name)
            self.telling.end()
        except (EngineDown, StateError, Unavailable) as error:  # not its own
            logger.error("chat %s waits: %s", name, error.message)
            self.telling.end(error)
            return False
        except KvasirError as error:
            await self._drop(name, error)
        except Exception:
            logger.exception("chat %s failed", name)
            await self._drop(name, KvasirError("internal error: see the server's log"))
        return True

    async def _drop(self, name: str, why: KvasirError) -> None:
        """What failed is not kept."""
        if self.waits:
            logger.error("chat %s is not kept: %s", name, why.message)
        try:
            await self.service.state.chats.drop(name)
        except KvasirError as error:
            logger.error("chat %s could not be removed: %s", name, error.message)
        self.telling.end(why)

    async def _compute(self, name: str) -> None:
        """The end is told when all is stored."""
        state = self.service.state
        log = await state.progress.load(name)
        with state.progress.keeping(log, name):
            ending, whole = await self._answered(log)
        is_beams = self.kept.resolved.job.length_penalty is not None
        await state.chats.finish(name, whole, None if is_beams else log.events)
        self.telling.answer = whole
        self.telling.tell(ending)

    async def _answered(self, log: RunLog) -> tuple[list[Parts], bytes]:
        """The end of its events, the others being told, and the whole answer."""
        while True:
            try:
                return await self._attempt(log)
            except CapacityError as error:
                if not self.waits:
                    raise
                seconds = min(error.retry_after or 1.0, MOST_SECONDS)
            await asyncio.sleep(seconds)  # and nothing of the attempt is kept meanwhile

    async def _attempt(self, log: RunLog) -> tuple[list[Parts], bytes]:
        whole = await reopened(self.service, self.kept)
        if self.kept.resolved.job.length_penalty is not None:
            return [], await self._whole(self._run(whole, self.listener))
        ending = await self._told(self._run(whole, self.listener, log))
        again = self._run(whole, Nobody(), RunLog(log.events))
        return ending, await self._whole(again)

    async def _told(self, run: AnswerRun) -> list[Parts]:
        n_told = len(self.telling.events)  # of an attempt before
        async with aclosing(run.batches()) as batches:
            async for batch in after(batches, n_told - 1):
                if batch and bytes(batch[-1][-1]).endswith(sse.DONE):
                    return batch
                self.telling.tell(batch)
        raise AssertionError("a stream has an end")

    async def _whole(self, run: AnswerRun) -> bytes:
        return b"".join(await run.whole())

    def _run(self, whole: Reopened, listener: Nobody, log: RunLog | None = None) -> AnswerRun:
        grammar = grammar_of(self.kept, whole.text)
        more = (self.timeout, self.submitted, log)
        tokenizer = whole.text.tokenizer
        return AnswerRun(whole.resolved, grammar, whole.model, tokenizer, listener, *more)


async def begin_chat(
    service: Service,
    exchange: Exchange,
    server: Server,
    kept: Kept,
    keep: Keep,
    submitted: Callable[[int], None],
    messages: tuple[ChatMessage, ...],
) -> None:
    """Answers ``exchange`` with a chat that goes on when its client leaves. Raises CapacityError
    (429), StorageFull (507), and what the run raises."""
    chats, resolved = service.state.chats, kept.resolved
    owner = service.owner(exchange)
    data = await beside(sum(map(len, resolved.images)), lasting(kept).encode)
    await chats.add(kept.envelope.id, owner, resolved.model, messages, data, keep.metadata)
    listener = Nobody(exchange.arrived, exchange.note)
    timeout = service.options.request_timeout
    said = Telling(owner)
    telling = ChatRun(service, kept, listener, timeout, submitted, telling=said).start()
    if not resolved.stream:
        return await exchange.send_bytes(await telling.over(), b"application/json")
    await exchange.send_stream(telling.follow(0, resolved.silence), grammar_of(kept, server.text))


async def go_on(service: Service) -> None:
    """With what a server before has left. One that cannot be read holds no other up."""
    chats = service.state.chats
    for name, owner in (await chats.open()).items():
        try:
            loaded = None if name in chats.live else await chats.load(name)
            if loaded is None:
                continue
            record, data = loaded
            if not (record.is_done or name in chats.live):
                ChatRun(service, decode(data), waits=True, telling=Telling(owner)).start()
        except msgspec.MsgspecError as error:
            logger.error("chat %s is left as it is: %s", name, error)


async def leave(service: Service) -> None:
    """What was computed is kept, and the rest is for the next server."""
    await service.state.progress.try_flush()
    tasks = list(service.state.chats.tasks.values())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def lasting(kept: Kept) -> Kept:
    """For who does not wait for it."""
    priority = kept.resolved.job.standing.priority_class
    return structs.replace(kept, resolved=later(kept.resolved, priority))


def grammar_of(kept: Kept, text: TextModel) -> Grammar:
    dialect = DIALECTS[kept.resolved.dialect]
    return dialect.grammar(kept.resolved, kept.envelope, text.tokenizer)
