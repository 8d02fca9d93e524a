"""Requests that come and go while others run, in the engine of an ``LLM``."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from weakref import WeakMethod

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent
from kvasir.core.request import EngineRequest, Standing
from kvasir.engine.engine import Engine
from kvasir.offline.batch import Growing
from kvasir.offline.opened import Opened
from kvasir.offline.prompts import Prompt
from kvasir.offline.tasks import new_task
from kvasir.offline.turns import QueuedCall, Turns, closed
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.standing import after

Act = Callable[[Engine], None]


class RequestCancelled(KvasirError):
    """Nobody waits for the request any more."""

    code = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """One choice of one prompt."""

    prompt: Prompt
    params: SamplingParams
    parent: int = -1
    """A ticket's number: what both prompts begin with is not computed again while that one runs or
    is held. -1: none."""
    hold_seconds: float = 0.0
    """What it computed is held for this long after its end, or until ``release``, unless a running
    request needs the memory."""
    n_scored: int = 0
    """Tokens of the prompt, after the first, whose logprobs are not wanted."""


class Ticket:
    """One request while it runs."""

    def __init__(self, number: int, growing: Growing, listen: Callable[[str], None] | None) -> None:
        self.number = number
        self.ended: Future[Growing] = Future()
        """The choice when it is whole, or a KvasirError."""
        self._growing = growing
        self._listen = listen

    def feed(self, event: TokenEvent) -> bool:
        """Whether it has ended."""
        text = self._growing.feed(event)
        if text and self._listen is not None:
            self._listen(text)
        if self._growing.is_finished:
            with suppress(InvalidStateError):
                self.ended.set_result(self._growing)
        return self._growing.is_finished

    def fail(self, error: KvasirError) -> None:
        """Unless it has ended."""
        with suppress(InvalidStateError):
            self.ended.set_exception(error)


class Session:
    """Any thread submits; what runs at the same time is computed together.

    While a request of it runs, other calls of the ``LLM`` wait. While none does, there is no thread
    and nothing to close.
    """

    def __init__(self, turns: Turns, has: WeakMethod[Callable[[], Opened]]) -> None:
        """``has``: what an ``LLM`` has while it is open."""
        self._turns = turns
        self._has = has
        self._lock = threading.Lock()
        self._inbox: deque[Act] = deque()
        self._open: dict[int, Ticket] = {}
        self._is_driven = False

    def opened(self) -> Opened:
        """Raises RequestError when the ``LLM`` is closed."""
        has = self._has()
        if has is None:
            raise closed()
        return has()

    def submit(self, asked: SessionRequest, listen: Callable[[str], None] | None = None) -> Ticket:
        """``listen`` is told each new text, by the thread that computes: it must be quick. Raises
        RequestError for what can never run."""
        has = self.opened()
        task = new_task(has, asked.prompt, asked.params)
        now, params = time.monotonic(), task.params
        request = EngineRequest(
            next(has.ids),
            task.prompt.ids,
            task.choices[0],
            task.prompt.context,
            Standing(ttft_by=after(now, params.ttft_ms), answer_by=after(now, params.deadline_ms)),
            parent=asked.parent,
            hold_seconds=asked.hold_seconds,
            n_scored=asked.n_scored,
            media=task.prompt.media,
        )
        ticket = Ticket(request.id, Growing(0, task, has.tokenizer), listen)

        def act(engine: Engine) -> None:
            try:
                engine.add(request)
            except RequestError as error:
                self._open.pop(request.id)
                ticket.fail(error)

        self._put(act, ticket)
        return ticket

    def cancel(self, ticket: Ticket) -> None:
        """One that has ended is fine."""

        def act(engine: Engine) -> None:
            if self._open.pop(ticket.number, None) is not None:
                engine.cancel(ticket.number)

        ticket.fail(RequestCancelled("the request was cancelled"))
        self._put(act)

    def release(self, numbers: Sequence[int]) -> None:
        """Give back what ended requests hold."""

        def act(engine: Engine) -> None:
            for number in numbers:
                engine.release(number)

        self._put(act)

    def _put(self, act: Act, ticket: Ticket | None = None) -> None:
        with self._lock:
            self._inbox.append(act)
            if ticket is not None:
                self._open[ticket.number] = ticket
            if self._is_driven:
                return
            self._is_driven = True
        threading.Thread(target=self._drive, name="kvasir-session", daemon=True).start()

    def _drive(self) -> None:
        try:
            self._turns.call(self._work)
        except BaseException as error:
            failure = error if isinstance(error, KvasirError) else KvasirError(repr(error))
            with self._lock:
                tickets = tuple(self._open.values())
                self._open.clear()
                self._inbox.clear()
                self._is_driven = False
            for ticket in tickets:
                ticket.fail(failure)

    def _work(self, turn: QueuedCall[None]) -> None:
        engine = self.opened().built.engine
        try:
            while self._goes_on(engine):
                turn.check()
                for event in engine.step().events:
                    ticket = self._open.get(event.id)
                    if ticket is not None and ticket.feed(event):
                        del self._open[event.id]
                        if event.finish is None:
                            engine.cancel(event.id)
        except BaseException:
            if engine.is_sound:
                for number in tuple(self._open):
                    engine.cancel(number)
                while engine.has_work:
                    engine.step()
            raise

    def _goes_on(self, engine: Engine) -> bool:
        """Does what waits; whether there is more to compute."""
        while True:
            with self._lock:
                if not self._inbox:
                    self._is_driven = engine.has_work
                    return self._is_driven
                act = self._inbox.popleft()
            act(engine)
