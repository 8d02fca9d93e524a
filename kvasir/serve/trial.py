"""Whether a grammar may be compiled in the engine: asked of a process that may die of it."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from msgspec import json

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.grammar.constraint import Constraint
from kvasir.grammar.errors import GrammarRefusal
from kvasir.serve.fairlock import FairLock
from kvasir.serve.lifecycle import Unavailable
from kvasir.serve.procfs import ProcessSigns
from kvasir.serve.workers import WorkerProcess

MAX_VERDICTS = 4096
MAX_LINE = 2**20
"""Bytes of what the process answers."""
MAX_WAITING = 64
"""Of one owner."""
PATIENCE = 5
"""Seconds that one may be waited for, of each second of CPU time that it may take: the machine may
have no more for it."""
WAIT_SECONDS = 30.0
"""For one that is asked for, its turn and the start of the process included; what is begun goes on,
so that who asks again finds what came of it."""
LOOK_SECONDS = 0.05
"""Between two looks at what it took."""
SENT = (-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP)
"""Ends that no grammar brings about: somebody sent them, or the system had no memory."""


class GrammarUnjudged(Unavailable):
    """What compiles grammars was killed, or got no CPU time: nothing is known of the grammar."""

    code = "grammar_unjudged"
    retry_after = 1.0


class AskedCompiler:
    """The compiler as one request asks it."""

    def __init__(self, compiler: TrialCompiler) -> None:
        self._compiler = compiler
        self.seconds = 0.0
        """That the request waited for it."""

    async def check(self, grammar: Constraint, n_ids: int, owner: str = "") -> None:
        """As ``TrialCompiler``'s."""
        began = time.monotonic()
        try:
            await self._compiler.check(grammar, n_ids, owner)
        finally:
            self.seconds += time.monotonic() - began


class TrialCompiler:
    """One process, started with the first grammar that nobody asked for before, which ends when it
    is idle. Lives in one event loop."""

    def __init__(
        self,
        model: Path,
        *,
        seconds: float,
        megabytes: int,
        tried: Callable[[float | None], None] = lambda seconds: None,
    ) -> None:
        """CPU ``seconds`` and ``megabytes`` that one grammar may take; ``tried`` is told how long
        each took, None where it was known."""
        self._tried = tried
        self._model = model
        self._seconds = seconds
        self._megabytes = megabytes
        self._verdicts: OrderedDict[str, GrammarRefusal | None] = OrderedDict()
        """By the grammar's key: None, or why it is refused."""
        self._lock = FairLock()
        self._trying: asyncio.Task[GrammarRefusal | GrammarUnjudged | None] | None = None
        """The newest; who asked for it may have left."""
        self._worker = WorkerProcess("compiles grammars", _greeting, MAX_LINE)

    async def check(self, grammar: Constraint, n_ids: int, owner: str = "") -> None:
        """Raises InvalidGrammar and UnsupportedSchema (400), CapacityError (429) when too many of
        ``owner`` wait, GrammarUnjudged (503). Owners take turns. ``n_ids``: those of the model."""
        if grammar.key not in self._verdicts:
            if self._lock.n_waiting(owner) >= MAX_WAITING:
                raise CapacityError(f"{MAX_WAITING} grammars wait to be compiled: try again later")
            began = time.monotonic()
            try:
                async with asyncio.timeout(WAIT_SECONDS), self._lock.taken(owner):
                    verdict = await self._next(grammar, n_ids)
            except TimeoutError:
                raise GrammarUnjudged(
                    f"the grammar was not judged within {WAIT_SECONDS:g} s, which is for the "
                    "process that compiles grammars to start and for those before it: try again"
                ) from None
            self._tried(time.monotonic() - began)
        else:
            verdict = self._verdicts[grammar.key]
            self._tried(None)
        if verdict is not None:
            raise verdict.error()

    def close(self) -> None:
        """The process ends."""
        self._worker.end()

    async def _next(self, grammar: Constraint, n_ids: int) -> GrammarRefusal | None:
        """The pipes are for one grammar at a time, also when nobody waits for it any more. Raises
        GrammarUnjudged."""
        if self._trying is not None:
            await asyncio.wait((self._trying,))
        if grammar.key in self._verdicts:
            return self._verdicts[grammar.key]
        self._trying = asyncio.create_task(self._try(grammar, n_ids))
        verdict = await asyncio.shield(self._trying)
        if isinstance(verdict, GrammarUnjudged):
            raise verdict
        return verdict

    async def _try(
        self, grammar: Constraint, n_ids: int
    ) -> GrammarRefusal | GrammarUnjudged | None:
        """A verdict is kept where it is the grammar's own."""
        try:
            line, status = await self._ask(grammar, n_ids)
            if not line:  # it may have died before, of something else
                line, status = await self._ask(grammar, n_ids)
        except KvasirError as error:  # the process did not start, or got no CPU time
            return error if isinstance(error, GrammarUnjudged) else GrammarUnjudged(error.message)
        if not line and status in SENT:
            return GrammarUnjudged("the process that compiles grammars was killed: try again")
        verdict = json.decode(line, type=GrammarRefusal | None) if line else self._too_large()
        self._verdicts[grammar.key] = verdict
        while len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)
        return verdict

    def _too_large(self) -> GrammarRefusal:
        return GrammarRefusal(
            f"the grammar takes more than {self._megabytes} MB to compile: simplify it"
        )

    def _too_slow(self) -> GrammarRefusal:
        return GrammarRefusal(
            f"the grammar takes more than {self._seconds:g} s to compile: simplify it"
        )

    async def _ask(self, grammar: Constraint, n_ids: int) -> tuple[bytes, int]:
        """What the process says; nothing when it died, and its status then. Raises
        GrammarUnjudged."""
        arguments = (str(self._model), str(n_ids), str(self._megabytes))
        given, said = await self._worker.pipes("kvasir.grammar.trial", arguments)
        try:
            given.write(json.encode(grammar.text) + b"\n")
            line = await self._line(said)
        except ConnectionError:
            line = b""
        except TimeoutError:
            self._worker.end()
            return json.encode(self._too_slow()), 0
        except GrammarUnjudged:
            self._worker.end()
            raise
        if line:
            return line, 0
        status = await self._worker.status()
        self._worker.end()
        return b"", status

    async def _line(self, said: asyncio.StreamReader) -> bytes:
        """What the process says next, nothing when it ends. Raises TimeoutError when it took the
        CPU time that it may, GrammarUnjudged when it got too little of it."""
        signs, began = ProcessSigns(self._worker.pid or 0), time.monotonic()
        may, left = signs.cpu_seconds + self._seconds, self._seconds
        while True:
            try:
                return await asyncio.wait_for(said.readline(), max(left, LOOK_SECONDS))
            except TimeoutError:
                left = may - signs.cpu_seconds
                if left <= 0:
                    raise
            if time.monotonic() - began > PATIENCE * self._seconds:
                raise GrammarUnjudged(
                    "the process that compiles grammars gets too little CPU time: try again later"
                )


async def _greeting(said: asyncio.StreamReader) -> bytes:
    return await said.readuntil()
