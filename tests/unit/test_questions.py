"""What engines are asked beside requests: answered, whichever of them lives."""

from __future__ import annotations

import asyncio

import pytest

from kvasir.core.errors import KvasirError
from kvasir.serve.messages import (
    AskHoldings,
    CacheReset,
    HoldingsAnswer,
    ResetPrefixCache,
    ToEngine,
)
from kvasir.serve.questions import Questions
from kvasir.timing.records import Holding

ASK, RESET, DONE = AskHoldings(), ResetPrefixCache(), CacheReset()


def test_another_engine_is_asked_what_the_one_before_did_not_answer() -> None:
    async def scenario() -> None:
        sent: list[ToEngine] = []
        questions = Questions(sent.append)
        asking = asyncio.create_task(questions.holdings())
        first, second = (questions.begin_reset(is_alive=True) for _ in range(2))
        await asyncio.sleep(0)
        assert sorted(map(str, sent)) == sorted(map(str, [RESET, RESET, ASK]))
        questions.answer_reset(DONE)
        assert first.done() and not second.done() and questions.are_open
        assert questions.begin_reset(is_alive=False) is second
        sent.clear()
        questions.ask_again()
        assert sent == [RESET, ASK]
        questions.answer_reset(DONE)
        questions.answer_holdings(HoldingsAnswer((Holding(1, 2, 3),)))
        assert second.done() and await asking == (Holding(1, 2, 3),)
        assert not questions.are_open

    asyncio.run(scenario())


def test_nobody_waits_for_an_engine_that_sleeps() -> None:
    async def scenario() -> None:
        sent: list[ToEngine] = []
        questions = Questions(sent.append)
        asking = asyncio.create_task(questions.holdings())
        await asyncio.sleep(0)
        before = questions.begin_reset(is_alive=True)
        questions.sleep()
        assert before.done() and await asking == () and not questions.are_open
        assert questions.begin_reset(is_alive=False) is before
        sent.clear()
        questions.ask_again()
        assert sent == [RESET]  # its disk is emptied first
        questions.answer_reset(DONE)
        questions.answer_reset(DONE)

    asyncio.run(scenario())


def test_who_asks_hears_that_there_is_no_engine_any_more() -> None:
    async def scenario() -> None:
        questions = Questions(lambda message: None)
        asking = asyncio.create_task(questions.holdings())
        await asyncio.sleep(0)
        asked, gone = (questions.begin_reset(is_alive=True) for _ in range(2))
        gone.cancel()
        questions.end(KvasirError("gone"))
        for each in (asking, asked):
            with pytest.raises(KvasirError, match="gone"):
                await each

    asyncio.run(scenario())
