"""Calls in turn on a thread of their own: what a signal interrupts is the wait, never the work."""

from __future__ import annotations

import atexit
import os
import threading
import traceback
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from kvasir.core.errors import KvasirError, RequestError

T = TypeVar("T")


class Abandoned(KvasirError):
    """Nobody waits for this call any more."""


class QueuedCall(Generic[T]):
    """One call."""

    def __init__(self, work: Callable[[QueuedCall[T]], T]) -> None:
        self._work = work
        self.is_abandoned = False
        self.outcomes: SimpleQueue[tuple[T] | BaseException] = SimpleQueue()
        """One: a result or an error."""

    def check(self) -> None:
        """Raises Abandoned when nobody waits any more; for between two steps."""
        if self.is_abandoned:
            raise Abandoned("nobody waits for this call any more")

    def run(self) -> tuple[T] | BaseException:
        try:
            self.check()
            return (self._work(self),)
        except BaseException as error:
            _forget_locals(error)
            return error


class Turns:
    """Runs calls one after the other, in the order in which they came, from any thread.

    A signal can raise at any bytecode of a main thread, but here only in code whose state nobody
    needs afterwards: there is no lock, queues are told and asked in one C call each, and
    ``is_abandoned`` is set by the first bytecodes of a handler, where no signal is looked for.
    """

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._waiting: SimpleQueue[QueuedCall[Any] | None] = SimpleQueue()
        self._current: QueuedCall[Any] | None = None
        self._has_ended = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()
        # The interpreter's end may not find the thread inside native code: that ends the process.
        atexit.register(self.end)

    def call(self, work: Callable[[QueuedCall[T]], T]) -> T:
        """What ``work`` returns or raises, after all calls before it.

        An exception that arrives from outside abandons the call: it is raised when ``work`` has
        noticed and come to rest. One more is raised at once, and the next call waits for that rest.
        Raises RequestError in a child of fork and after ``end``.
        """
        if not self.is_here:
            raise RequestError(
                f"this LLM was loaded by process {self._process} and cannot be used in its child "
                f"{os.getpid()}: load it after the fork, or start the child with spawn"
            )
        turn = QueuedCall(work)
        try:
            self._waiting.put(turn)
            if self._has_ended:
                self._refuse()
            outcome = turn.outcomes.get()
        except BaseException:
            turn.is_abandoned = True
            if self._current is turn:  # then its outcome has not been told yet
                turn.outcomes.get()
            raise
        if not isinstance(outcome, BaseException):
            return outcome[0]
        try:
            raise outcome
        finally:
            del outcome, turn  # which this frame would keep, and the error this frame

    def end(self) -> None:
        """Abandons what runs, refuses what waits, ends the thread. Does nothing in a child of
        fork."""
        if not self.is_here:
            return
        atexit.unregister(self.end)
        current = self._current
        if current is not None:
            current.is_abandoned = True
        self._waiting.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_here(self) -> bool:
        """Whether this is the process that the thread runs in."""
        return os.getpid() == self._process

    def _serve(self) -> None:
        while (turn := self._waiting.get()) is not None:
            self._current = turn
            outcome = turn.run()
            self._current = None
            turn.outcomes.put(outcome)
            del turn, outcome  # or they would live until the next call
        self._has_ended = True
        self._refuse()

    def _refuse(self) -> None:
        """All that wait after the end: by the thread, and by whoever comes too late for that."""
        while True:
            try:
                turn = self._waiting.get_nowait()
            except Empty:
                return
            if turn is not None:
                turn.outcomes.put(closed())


def closed() -> RequestError:
    return RequestError("this LLM is closed: create a new one")


def _forget_locals(error: BaseException) -> None:
    """Of the frames that ``error`` came through: who keeps it keeps no engine."""
    known: set[int] = set()
    rest: list[BaseException | None] = [error]
    while rest:
        one = rest.pop()
        if one is not None and id(one) not in known:
            known.add(id(one))
            traceback.clear_frames(one.__traceback__)
            rest += [one.__cause__, one.__context__]
