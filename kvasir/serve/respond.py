"""Runs a job and sends its answer, whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from kvasir.serve import sse
from kvasir.serve.answer import Answer, Chunk, Json, Whole, usage, worded
from kvasir.serve.exchange import Exchange
from kvasir.serve.generation import Generation
from kvasir.serve.parts import writes
from kvasir.serve.protocol.sampling import SamplingFields, StreamOptions
from kvasir.serve.slices import Value, Work, at_once
from kvasir.text.choice import Delta

OPENING_CHUNKS = 64
"""Of those before the first token, sent at a time: about half a millisecond."""


@dataclass(slots=True)
class _Counts:
    """Tokens of a stream so far."""

    n_prompt: int
    n_output: int = 0
    n_cached: int = 0

    def usage(self) -> Json:
        return usage(self.n_prompt, self.n_output, self.n_cached)


async def respond(
    generation: Generation, answer: Answer, exchange: Exchange, fields: SamplingFields
) -> None:
    """Raises what the generation raises; a stream has then begun or not, as ``exchange.started``
    tells."""
    if fields.stream:
        await _stream(generation, answer, exchange, fields.stream_options or StreamOptions())
    else:
        await _send_whole(generation, answer, exchange)


async def _send_whole(generation: Generation, answer: Answer, exchange: Exchange) -> None:
    wholes = [Whole() for _ in range(generation.job.n_choices)]
    async for deltas in generation.deltas():
        await _do(generation, answer, _gathered(answer, wholes, deltas))
    job = generation.job
    n_output = sum(whole.n_tokens for whole in wholes)
    n_cached = sum(whole.n_cached for i, whole in enumerate(wholes) if job.is_first(i))
    counts = usage(job.n_prompt_tokens, n_output, n_cached)
    await exchange.send_parts(await generation.slices.run(worded(answer, wholes, counts)))


async def _do(generation: Generation, answer: Answer, work: Work[Value]) -> Value:
    """In slices where it may be long."""
    return await generation.slices.run(work) if answer.has_logprobs else at_once(work)


def _gathered(answer: Answer, wholes: Sequence[Whole], deltas: Sequence[Delta]) -> Work[None]:
    for delta in deltas:
        yield from answer.read(delta)
        wholes[delta.index].add(delta)


async def _stream(
    generation: Generation, answer: Answer, exchange: Exchange, options: StreamOptions
) -> None:
    counts = _Counts(generation.job.n_prompt_tokens)
    news = generation.deltas()
    if generation.job.standing.has_deadline:
        news = await _begun(news)
    await exchange.start_events()
    opening = _opening(answer)
    for first in range(0, len(opening), OPENING_CHUNKS):
        some = [Chunk(value, []) for value in opening[first : first + OPENING_CHUNKS]]
        await _send(exchange, some, counts, options)
        await asyncio.sleep(0)
    async for deltas in news:
        for delta in deltas:
            counts.n_output += delta.n_tokens
            counts.n_cached += delta.n_cached if generation.job.is_first(delta.index) else 0
        chunks = await _do(generation, answer, _chunks(answer, deltas))
        await _send(exchange, chunks, counts, options)
    last = b""
    if options.include_usage:
        final = {**answer.envelope.wrap([], kind=answer.chunk_kind), "usage": counts.usage()}
        last = sse.event(final)
    await exchange.send_events(last + sse.DONE)
    await exchange.end_events()


def _chunks(answer: Answer, deltas: Sequence[Delta]) -> Work[list[Chunk]]:
    chunks: list[Chunk] = []
    for delta in deltas:
        yield from answer.read(delta)
        chunks.extend(answer.chunks(delta))
    return chunks


async def _begun(news: AsyncIterator[Sequence[Delta]]) -> AsyncIterator[Sequence[Delta]]:
    """``news`` after its first item has come, so that a refusal still has a status of its own."""
    first = await anext(news)

    async def again() -> AsyncIterator[Sequence[Delta]]:
        yield first
        async for item in news:
            yield item

    return again()


def _opening(answer: Answer) -> list[Json]:
    """Chunks before the first token; the first of a stream carries the warnings."""
    chunks, warnings = answer.opening(), answer.envelope.warnings
    if warnings and not chunks:
        chunks = [answer.envelope.wrap([], kind=answer.chunk_kind)]
    if warnings:
        chunks[0]["warnings"] = list(warnings)
    return chunks


async def _send(
    exchange: Exchange, chunks: list[Chunk], counts: _Counts, options: StreamOptions
) -> None:
    """One write for all chunks of a step, unless they are large."""
    if not chunks:
        return
    if options.include_usage:
        current = counts.usage() if options.continuous_usage_stats else None
        for chunk in chunks:
            chunk.value["usage"] = current
    events = (part for chunk in chunks for part in sse.event_of(chunk.value, chunk.parts))
    for i, data in enumerate(writes(events)):
        if i:
            await asyncio.sleep(0)
        await exchange.send_events(data)
