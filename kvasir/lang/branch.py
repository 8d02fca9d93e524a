"""One line of a program: its calls run one after the other, while the program goes on."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Protocol

from kvasir.lang.calls import Answer, Calling, Counts, ProgramLine
from kvasir.lang.expressions import Gen, Role, Select
from kvasir.lang.seeds import Path, seed_of
from kvasir.lang.stopping import Stop
from kvasir.lang.trace import CallRecord, Trace
from kvasir.validation.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSettings:
    """What all branches of one program share."""

    params: SamplingParams
    seed: int
    stop: Stop
    start: Callable[[Callable[[], None]], object]
    """Runs something on another thread."""
    trace: Trace | None = None
    program: int = 0
    listen: Callable[[str, str], None] | None = None
    """Told a variable's name and each new text of it."""


class Variable:
    """A name's text, once it is there."""

    def __init__(self, branch: Branch, read: Callable[[str], object]) -> None:
        """``branch``: where it was called; ``read``: the value of its text."""
        self.ended: Future[Answer] = Future()
        self._branch = branch
        self._read = read

    def answer(self) -> Answer:
        """Waits for it. Raises what went wrong, which its branch need not tell again."""
        if self.ended.exception() is not None:
            self._branch.is_told = True
        return self.ended.result()

    def value(self) -> object:
        return self._read(self.answer().text)


class BranchStep(Protocol):
    def run(self, line: ProgramLine) -> ProgramLine: ...

    def fail(self, error: BaseException) -> None:
        """It is not run, or ``run`` raised."""
        ...


class Branch:
    """Any thread adds steps; one at a time runs, on a thread that lives while there are any."""

    def __init__(self, settings: RunSettings, path: Path, line: ProgramLine | None) -> None:
        """``line``: what it goes on from; None: ``begin`` tells."""
        self.settings = settings
        self.path = path
        self._line = line
        self._has_begun = line is not None
        self._lock = threading.Lock()
        self._steps: deque[BranchStep] = deque()
        self._is_running = False
        self._idle = threading.Condition(self._lock)
        self.error: BaseException | None = None
        """What ended it."""
        self.is_told = False
        """Somebody was told of the error."""

    def add(self, step: BranchStep) -> None:
        """Raises RuntimeError where the program has ended, and its threads with it."""
        with self._lock:
            self._steps.append(step)
            try:
                self._start()
            except RuntimeError as error:
                self._is_running = False
                self._steps.clear()
                ended = RuntimeError(f"nothing can be added: has the program ended? ({error})")
                step.fail(ended)
                raise ended from error

    def begin(self, line: ProgramLine | None, error: BaseException | None = None) -> None:
        """``error``: the branch that it would go on from has failed."""
        with self._lock:
            self._line, self.error = line, error
            self.is_told = error is not None
            self._has_begun = True
            self._start()
            self._idle.notify_all()  # of a branch without steps nobody else says so

    def wait(self) -> None:
        """Until all steps added so far have run."""
        with self._idle:
            self._idle.wait_for(lambda: self._has_begun and not self._is_running)

    def text(self) -> str:
        """All that was said and drawn. Raises what ended it."""
        self.wait()
        self.check()
        return "" if self._line is None else self._line.text

    def check(self) -> None:
        if self.error is not None:
            self.is_told = True
            raise self.error

    def _start(self) -> None:
        if self._has_begun and self._steps and not self._is_running:
            self._is_running = True
            self.settings.start(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._steps:
                    self._is_running = False
                    self._idle.notify_all()
                    return
                step = self._steps.popleft()
            if self.error is None and self._line is not None:
                try:
                    self._line = step.run(self._line)
                except BaseException as error:
                    self.error = error
            if self.error is not None:
                step.fail(self.error)


@dataclass(frozen=True, slots=True)
class SayStep:
    text: str

    def run(self, line: ProgramLine) -> ProgramLine:
        return line.said(self.text)

    def fail(self, error: BaseException) -> None:
        """Nobody reads it."""


@dataclass(frozen=True, slots=True)
class BeginTurn:
    role: Role

    def run(self, line: ProgramLine) -> ProgramLine:
        return line.opened(self.role)

    def fail(self, error: BaseException) -> None:
        """As above."""


@dataclass(frozen=True, slots=True)
class EndTurn:
    def run(self, line: ProgramLine) -> ProgramLine:
        return line.closed()

    def fail(self, error: BaseException) -> None:
        """As above."""


@dataclass(frozen=True, slots=True)
class CallStep:
    """``place``: of the call in its program."""

    call: Gen | Select
    settings: RunSettings
    place: Path
    variable: Variable

    def run(self, line: ProgramLine) -> ProgramLine:
        began = time.monotonic()
        settings, name = self.settings, self.call.name or ""
        listen = settings.listen
        calling = Calling(
            params=settings.params,
            stop=settings.stop,
            listen=None if listen is None else lambda text: listen(name, text),
        )
        settings.stop.check()
        if isinstance(self.call, Gen):
            kind, params = "gen", self.call.params(settings.params, self._seed())
            line, answer = line.generate(replace(calling, params=params))
        else:
            kind = "select"
            line, answer = line.select(self.call, calling)
            if listen is not None:
                listen(name, answer.text)
        record(settings, name, kind, self.place[:-1], answer.counts, began)
        self.variable.ended.set_result(answer)
        return line

    def fail(self, error: BaseException) -> None:
        self.variable.ended.set_exception(error)

    def _seed(self) -> int:
        return seed_of(self.settings.seed, self.place)


@dataclass(frozen=True, slots=True)
class ForkStep:
    """Others go on from here."""

    branches: tuple[Branch, ...]

    def run(self, line: ProgramLine) -> ProgramLine:
        began = time.monotonic()
        first = self.branches[0]
        line, counts = line.shared(first.settings.stop)
        if counts.n_prompt:
            record(first.settings, "", "fork", first.path[:-2], counts, began)
        for branch in self.branches:
            branch.begin(line)
        return line

    def fail(self, error: BaseException) -> None:
        for branch in self.branches:
            branch.begin(None, error)


def record(
    settings: RunSettings, name: str, kind: str, path: Path, counts: Counts, began: float
) -> None:
    """Of a call that has ended now, if anybody traces."""
    if settings.trace is not None:
        ended = time.monotonic()
        settings.trace.add(CallRecord(name, kind, path, counts, began, ended, settings.program))
