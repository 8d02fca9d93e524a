"""Fewer and larger pieces of a stream, where its client asks for them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from msgspec.structs import replace

from kvasir.text.choice import Delta


async def paced(
    news: AsyncIterator[Sequence[Delta]], interval: int
) -> AsyncIterator[Sequence[Delta]]:
    """``news`` with ``interval`` tokens or more in a delta, but for the first and the last of a
    choice, and scores of its prompt, which are not held back."""
    held: dict[int, Delta] = {}
    async for deltas in news:
        if not deltas:
            yield deltas
        elif due := [x for delta in deltas if (x := _due(held, delta, interval)) is not None]:
            yield due


def _due(held: dict[int, Delta], delta: Delta, interval: int) -> Delta | None:
    """What is told with ``delta`` of its choice; ``held``: by choice what is not told yet, which is
    empty before the second token."""
    is_first = delta.index not in held
    whole = delta if is_first else _joined(held[delta.index], delta)
    if is_first or delta.scores or delta.finish is not None or whole.n_tokens >= interval:
        if delta.n_tokens or not is_first:
            held[delta.index] = Delta(delta.index)
        return whole
    held[delta.index] = whole
    return None


def _joined(before: Delta, delta: Delta) -> Delta:
    return replace(
        delta,
        text=before.text + delta.text,
        tokens=before.tokens + delta.tokens,
        n_cached=before.n_cached + delta.n_cached,
        logprobs=before.logprobs + delta.logprobs,
        pieces=before.pieces + delta.pieces,
        is_content=before.is_content + delta.is_content,
        n_reasoning=before.n_reasoning + delta.n_reasoning,
        prediction_hits=before.prediction_hits + delta.prediction_hits,
        prediction_misses=before.prediction_misses + delta.prediction_misses,
    )
