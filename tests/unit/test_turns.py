"""Calls in turn: order, abandonment, the end, and signals at any moment of the wait."""

from __future__ import annotations

import gc
import multiprocessing
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from kvasir.core.errors import RequestError
from kvasir.offline.turns import Abandoned, QueuedCall, Turns

PATIENCE = 30.0


@pytest.fixture
def turns() -> Iterator[Turns]:
    made = Turns("turns-test")
    yield made
    made.end()


def work_until_abandoned(turn: QueuedCall[None]) -> None:
    while True:
        turn.check()
        time.sleep(0.001)


def test_calls_come_in_their_order_on_one_thread(turns: Turns) -> None:
    seen: list[tuple[int, int]] = []
    begun = threading.Event()

    def first(_: QueuedCall[None]) -> None:
        begun.set()
        while turns._waiting.qsize() < 8:
            time.sleep(0.001)

    threads = [threading.Thread(target=turns.call, args=(first,))]
    threads[0].start()
    assert begun.wait(PATIENCE)
    for number in range(8):

        def note(_: QueuedCall[None], number: int = number) -> None:
            seen.append((number, threading.get_ident()))

        threads.append(threading.Thread(target=turns.call, args=(note,)))
        threads[-1].start()
        while number < 7 and turns._waiting.qsize() <= number:
            time.sleep(0.001)
    for thread in threads:
        thread.join(PATIENCE)
    assert [number for number, _ in seen] == list(range(8))
    assert len({thread for _, thread in seen} - {threading.get_ident()}) == 1


def test_results_and_errors_come_back(turns: Turns) -> None:
    assert turns.call(lambda _: 5) == 5

    def fails(_: QueuedCall[None]) -> None:
        raise ZeroDivisionError("as asked")

    with pytest.raises(ZeroDivisionError, match="as asked"):
        turns.call(fails)
    assert turns.call(lambda _: 6) == 6


def test_an_error_keeps_nothing_alive(turns: Turns) -> None:
    class Large:
        pass

    alive: list[weakref.ref[Large]] = []

    def fails(_: QueuedCall[None]) -> None:
        large = Large()
        alive.append(weakref.ref(large))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        turns.call(fails)
    assert caught.value.__traceback__ is not None
    assert alive[0]() is None


def test_an_interrupted_wait_abandons_its_call_alone(turns: Turns) -> None:
    ended: list[str] = []

    def work(turn: QueuedCall[None]) -> None:
        try:
            threading.Timer(0.05, os.kill, (os.getpid(), 2)).start()
            work_until_abandoned(turn)
        finally:
            ended.append("at rest")

    with pytest.raises(KeyboardInterrupt):
        turns.call(work)
    assert ended == ["at rest"]
    assert turns.call(lambda _: 7) == 7


def test_a_second_interrupt_does_not_wait_for_the_rest(turns: Turns) -> None:
    let_go = threading.Event()

    def work(turn: QueuedCall[None]) -> None:
        for _ in range(2):
            time.sleep(0.1)
            os.kill(os.getpid(), 2)
        let_go.wait(PATIENCE)
        turn.check()

    with pytest.raises(KeyboardInterrupt):
        turns.call(work)
    assert not let_go.is_set()
    let_go.set()
    assert turns.call(lambda _: 8) == 8


def test_an_interrupt_while_others_run_leaves_the_queue_at_once(turns: Turns) -> None:
    begun, let_go, ran = threading.Event(), threading.Event(), []

    def long(_: QueuedCall[None]) -> None:
        begun.set()
        let_go.wait(PATIENCE)

    other = threading.Thread(target=turns.call, args=(long,))
    other.start()
    assert begun.wait(PATIENCE)
    threading.Timer(0.1, os.kill, (os.getpid(), 2)).start()
    with pytest.raises(KeyboardInterrupt):
        turns.call(lambda _: ran.append("never"))
    let_go.set()
    other.join(PATIENCE)
    assert turns.call(lambda _: 9) == 9
    assert ran == []


def test_the_end_abandons_and_refuses() -> None:
    turns = Turns("turns-test")
    errors: list[BaseException] = []

    def call(work: object) -> None:
        try:
            turns.call(work)  # type: ignore[arg-type]
        except BaseException as error:
            errors.append(error)

    threads = [
        threading.Thread(target=call, args=(work,))
        for work in (work_until_abandoned, work_until_abandoned)
    ]
    for thread in threads:
        thread.start()
    while turns._current is None or turns._waiting.empty():
        time.sleep(0.001)
    ending = threading.Thread(target=turns.end)
    ending.start()
    time.sleep(0.05)
    turns._current.is_abandoned = True  # the second one, which came before the end
    for thread in (*threads, ending):
        thread.join(PATIENCE)
    assert [type(error) for error in errors] == [Abandoned, Abandoned]
    with pytest.raises(RequestError, match="closed"):
        turns.call(lambda _: 1)
    turns.end()
    assert not turns._thread.is_alive()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_of_fork_is_refused_and_may_end(turns: Turns) -> None:
    def child() -> None:
        with pytest.raises(RequestError, match="load it after the fork"):
            turns.call(lambda _: 1)
        turns.end()

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(PATIENCE)
    assert process.exitcode == 0
    assert turns.call(lambda _: 2) == 2


def test_nothing_lives_on_between_calls(turns: Turns) -> None:
    class Large:
        pass

    large = Large()
    alive = weakref.ref(large)
    turns.call(lambda _, kept=large: None)  # type: ignore[misc]
    del large
    gc.collect()
    deadline = time.monotonic() + PATIENCE
    while alive() is not None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert alive() is None


def test_the_interpreter_ends_while_a_call_is_in_native_code() -> None:
    program = (
        "import numpy as np, threading, time\n"
        "from kvasir import _native\n"
        "from kvasir.offline.turns import Turns\n"
        "memory, turns = np.empty(1 << 30, np.uint8), Turns('t')\n"
        "work = lambda turn: _native.populate_pages(memory)\n"
        "threading.Thread(target=lambda: turns.call(work), daemon=True).start()\n"
        "time.sleep(0.02)\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")
