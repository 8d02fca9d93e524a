"""Who leaves while a grammar is compiled takes nobody else's verdict with them."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kvasir.grammar.constraint import choice_grammar, lark_grammar, schema_grammar
from kvasir.grammar.errors import InvalidGrammar, UnsupportedSchema
from kvasir.serve import trial
from kvasir.serve.fairlock import FairLock
from kvasir.serve.trial import GrammarUnjudged, TrialCompiler
from kvasir.serve.workers import Pipes, WorkerProcess
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.source import open_model
from tests.e2e.toy_model import write_toy_model


def test_who_leaves_takes_nobody_elses_verdict(tmp_path: Path) -> None:
    model = write_toy_model(tmp_path)
    n_ids = load_tokenizer(open_model(str(model))).vocab_size

    async def run() -> None:
        compiler = TrialCompiler(model, seconds=30, megabytes=256)
        try:
            await compiler.check(choice_grammar(["loaded"]), n_ids)
            for i in range(3):
                fields = {f"p{i}_{k}": {"type": "string"} for k in range(480)}
                slow = schema_grammar({"type": "object", "properties": fields})
                left = asyncio.create_task(compiler.check(slow, n_ids))
                await asyncio.sleep(0.01)
                left.cancel()
                with pytest.raises(InvalidGrammar, match=f"nowhere{i}"):
                    await compiler.check(lark_grammar(f"start: nowhere{i}"), n_ids)
                await compiler.check(choice_grammar([f"good{i}"]), n_ids)
                with pytest.raises(asyncio.CancelledError):
                    await left
        finally:
            process = compiler._worker._process
            compiler.close()
            if process is not None:
                await process.wait()

    asyncio.run(run())


def test_a_keyword_that_the_library_lacks_is_named(tmp_path: Path) -> None:
    model = write_toy_model(tmp_path)
    n_ids = load_tokenizer(open_model(str(model))).vocab_size

    async def run() -> None:
        compiler = TrialCompiler(model, seconds=30, megabytes=256)
        try:
            for _ in range(2):
                with pytest.raises(UnsupportedSchema, match="'pattern' at #/pattern") as caught:
                    await compiler.check(
                        schema_grammar({"type": "string", "pattern": "(?=a)"}), n_ids
                    )
                assert caught.value.keyword == "pattern"
        finally:
            process = compiler._worker._process
            compiler.close()
            if process is not None:
                await process.wait()

    asyncio.run(run())


def test_what_befalls_the_compiler_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands still, and is killed twice: the grammar is taken when it is asked for again. One
    that takes too much CPU time is refused for good."""
    model = write_toy_model(tmp_path)
    n_ids = load_tokenizer(open_model(str(model))).vocab_size
    good = choice_grammar(["good"])

    begun: set[Process] = set()

    def seen(worker: WorkerProcess) -> Callable[..., Awaitable[Pipes]]:
        pipes = worker.pipes

        async def opened(*arguments: Any) -> Pipes:
            found, process = await pipes(*arguments), worker._process
            assert process is not None
            begun.add(process)
            if is_killed:
                os.kill(process.pid, signal.SIGKILL)
            return found

        return opened

    is_killed = False

    async def run() -> None:
        nonlocal is_killed
        compiler = TrialCompiler(model, seconds=0.2, megabytes=256)
        monkeypatch.setattr(compiler._worker, "pipes", seen(compiler._worker))
        try:
            await compiler.check(choice_grammar(["loaded"]), n_ids)
            os.kill(compiler._worker.pid or 0, signal.SIGSTOP)
            with pytest.raises(GrammarUnjudged, match="CPU time") as caught:
                await compiler.check(good, n_ids)
            assert (caught.value.status, caught.value.retry_after) == (503, 1)
            await compiler.check(choice_grammar(["new"]), n_ids)
            is_killed = True
            with pytest.raises(GrammarUnjudged, match="killed"):
                await compiler.check(good, n_ids)
            is_killed = False
            await compiler.check(good, n_ids)
            compiler._seconds = 0.005
            monkeypatch.setattr(trial, "PATIENCE", 1000)
            slow = choice_grammar([f"{i * i}" * 14 for i in range(9000)])
            for _ in range(2):
                with pytest.raises(InvalidGrammar, match=r"more than 0\.005 s"):
                    await compiler.check(slow, n_ids)
        finally:
            compiler.close()
            for process in begun:
                await process.wait()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_nobody_waits_for_as_long_as_it_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was begun goes on, and is there for who asks again."""
    model = write_toy_model(tmp_path)
    n_ids = load_tokenizer(open_model(str(model))).vocab_size
    good, other = choice_grammar(["good"]), choice_grammar(["other"])

    async def run() -> None:
        compiler = TrialCompiler(model, seconds=30, megabytes=256)
        try:
            await compiler.check(choice_grammar(["loaded"]), n_ids)
            process = compiler._worker._process
            assert process is not None
            os.kill(process.pid, signal.SIGSTOP)
            monkeypatch.setattr(trial, "WAIT_SECONDS", 0.2)
            for grammar in (good, other):
                with pytest.raises(GrammarUnjudged, match=r"within 0\.2 s"):
                    await compiler.check(grammar, n_ids)
            os.kill(process.pid, signal.SIGCONT)
            monkeypatch.setattr(trial, "WAIT_SECONDS", 30.0)
            await compiler.check(good, n_ids)
            await compiler.check(other, n_ids)
            assert compiler._worker._process is process
        finally:
            process = compiler._worker._process
            compiler.close()
            if process is not None:
                await process.wait()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_owners_take_turns() -> None:
    """Whoever brings a thousand waits for them; another waits for one of them."""

    async def run() -> list[str]:
        lock, order, begun = FairLock(), list[str](), asyncio.Event()

        async def work(owner: str) -> None:
            async with lock.taken(owner):
                await begun.wait()
                order.append(owner)

        owners = (*["many"] * 5, "one", "two", "one")
        tasks = [asyncio.create_task(work(owner)) for owner in owners]
        await asyncio.sleep(0)
        assert [lock.n_waiting(owner) for owner in ("many", "one", "two")] == [4, 2, 1]
        begun.set()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run()) == ["many", "many", "one", "two", "many", "one", "many", "many"]


def test_several_have_a_place_at_a_time() -> None:
    async def run() -> list[str]:
        lock, order = FairLock(2), list[str]()

        async def work(owner: str) -> None:
            async with lock.taken(owner):
                order.append(owner)
                await asyncio.sleep(0.01)

        asking = (work(owner) for owner in (*["many"] * 4, "one"))
        await asyncio.gather(*asking)
        return order

    assert asyncio.run(run()) == ["many", "many", "many", "one", "many"]


def test_who_leaves_a_line_stops_nobody() -> None:
    async def run() -> list[int]:
        lock, order = FairLock(), list[int]()

        async def work(i: int) -> None:
            async with lock.taken(str(i % 3)):
                order.append(i)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(work(i)) for i in range(12)]
        await asyncio.sleep(0)
        for i in (1, 4, 6, 11):
            tasks[i].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await work(12)
        assert not any(lock.n_waiting(str(owner)) for owner in range(3))
        return order

    assert sorted(asyncio.run(run())) == [0, 2, 3, 5, 7, 8, 9, 10, 12]
