"""Fewer and larger pieces of a stream hold all that was in the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import reduce
from operator import add

import pytest

from kvasir.core.messages import TokenLogprob
from kvasir.serve.pace import paced
from kvasir.text.choice import Delta
from kvasir.toolcalls.pieces import Said

SUMS = ("text", "tokens", "n_cached", "logprobs", "pieces", "is_content", "n_reasoning")


def piece(i: int, n: int) -> Delta:
    return Delta(
        i % 2,
        text=chr(97 + i),
        tokens=(i,),
        n_cached=int(i < 2),
        logprobs=(TokenLogprob(i, -1.0, 1),),
        pieces=(Said(chr(97 + i)),),
        is_content=(i % 3 == 0,),
        n_reasoning=1,
        finish="length" if i >= n - 2 else None,
    )


async def told(deltas: Sequence[Delta], interval: int) -> list[Delta]:
    async def news() -> AsyncIterator[list[Delta]]:
        for delta in deltas:
            yield [delta]

    return [delta async for some in paced(news(), interval) for delta in some]


@pytest.mark.parametrize("interval", [2, 3, 100])
def test_nothing_of_what_is_held_back_is_lost(interval: int) -> None:
    deltas = [piece(i, 22) for i in range(22)]
    found = asyncio.run(told(deltas, interval))
    assert len(found) < len(deltas)
    for index in (0, 1):
        for name in SUMS:
            plain, larger = (
                reduce(add, [getattr(x, name) for x in some if x.index == index])
                for some in (deltas, found)
            )
            assert larger == plain, name
