"""Sends the answer of a run, whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from kvasir.serve.answer import Grammar
from kvasir.serve.exchange import Exchange
from kvasir.serve.parts import WRITE_BYTES, Parts, flat, writes
from kvasir.serve.run import AnswerRun, Batch


class AnswerStore(Protocol):
    """Is given an answer before its end is told; an answer that cannot be stored fails.

    Of a stream these are its last events: others may have been told at once."""

    async def whole(self, parts: Parts) -> None: ...

    async def events(self, events: Batch) -> None: ...


async def respond(run: AnswerRun, exchange: Exchange, store: AnswerStore | None = None) -> None:
    """Raises what the run raises; a stream has then begun or not, as ``exchange.started`` tells."""
    grammar = run.grammar
    if run.resolved.stream:
        batches = run.batches(exchange)
        news = batches if store is None else _stored(batches, store)
        return await send_batches(news, exchange, grammar)
    parts = await run.whole()
    if store is not None:
        await store.whole(parts)
    await exchange.send_parts(parts, grammar.media)


async def _stored(
    batches: AsyncGenerator[Batch, None], store: AnswerStore
) -> AsyncGenerator[Batch, None]:
    async with aclosing(batches):
        async for batch in batches:
            await store.events(batch)
            yield batch


async def send_batches(
    news: AsyncGenerator[Batch, None], exchange: Exchange, grammar: Grammar
) -> None:
    """Sends a stream."""
    async with aclosing(news) as batches:
        async for batch in batches:
            if not exchange.started:
                await exchange.start_events(grammar.headers, grammar.failure)
            if batch:
                await _send(exchange, batch)
            elif grammar.silence:
                await exchange.send_events(grammar.silence)
    if not exchange.started:  # all of it was told before
        await exchange.start_events(grammar.headers, grammar.failure)
    await exchange.end_events()


async def _send(exchange: Exchange, batch: Batch) -> None:
    """One write for all events of a step, unless they are large."""
    parts = flat(batch)
    if sum(map(len, parts)) <= WRITE_BYTES:
        return await exchange.send_events(b"".join(parts))
    for i, data in enumerate(writes(parts)):
        if i:
            await asyncio.sleep(0)
        await exchange.send_events(data)
