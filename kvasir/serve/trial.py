"""Whether a grammar may be compiled in the engine: asked of a process that may die of it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from kvasir.core.errors import CapacityError, KvasirError
from kvasir.grammar.constraint import MAX_BYTES, Constraint
from kvasir.grammar.errors import InvalidGrammar
from kvasir.serve.fairlock import FairLock

MAX_VERDICTS = 4096
MAX_WAITING = 64
"""Of one owner."""
START_SECONDS = 60.0
"""For the process to load the model's tokens: most of a second, on a busy machine many."""
IDLE_SECONDS = 60.0
"""After which the process ends."""


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
        """``seconds`` and ``megabytes`` that one grammar may take; ``tried`` is told how long each
        took, None where it was known."""
        self._tried = tried
        self._model = model
        self._seconds = seconds
        self._megabytes = megabytes
        self._verdicts: OrderedDict[str, str] = OrderedDict()
        """By the grammar's key: why it is refused, or nothing."""
        self._lock = FairLock()
        self._trying: asyncio.Task[str] | None = None
        """The newest; who asked for it may have left."""
        self._process: Process | None = None
        self._retires: asyncio.TimerHandle | None = None

    async def check(self, grammar: Constraint, n_ids: int, owner: str = "") -> None:
        """Raises InvalidGrammar (400), CapacityError (429) when too many of ``owner`` wait. Owners
        take turns. ``n_ids``: those of the model."""
        verdict = self._verdicts.get(grammar.key)
        if verdict is None:
            if self._lock.n_waiting(owner) >= MAX_WAITING:
                raise CapacityError(f"{MAX_WAITING} grammars wait to be compiled: try again later")
            began = time.monotonic()
            async with self._lock.taken(owner):
                verdict = await self._next(grammar, n_ids)
            self._tried(time.monotonic() - began)
        else:
            self._tried(None)
        if verdict:
            raise InvalidGrammar(verdict)

    def close(self) -> None:
        """The process ends."""
        self._retire()

    async def _next(self, grammar: Constraint, n_ids: int) -> str:
        """The pipes are for one grammar at a time, also when nobody waits for it any more."""
        if self._trying is not None:
            await asyncio.wait((self._trying,))
        verdict = self._verdicts.get(grammar.key)
        if verdict is None:
            self._trying = asyncio.create_task(self._try(grammar, n_ids))
            verdict = await asyncio.shield(self._trying)
        return verdict

    async def _try(self, grammar: Constraint, n_ids: int) -> str:
        verdict = await self._ask(grammar, n_ids)
        if verdict is None:  # it may have died before, of something else
            verdict = await self._ask(grammar, n_ids)
        if verdict is None:
            verdict = f"the grammar takes more than {self._megabytes} MB to compile: simplify it"
        self._verdicts[grammar.key] = verdict
        while len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)
        return verdict

    async def _ask(self, grammar: Constraint, n_ids: int) -> str | None:
        """None when the process died of it."""
        given, said = await self._open(n_ids)
        try:
            given.write(json.dumps(grammar.text).encode() + b"\n")
            line = await asyncio.wait_for(said.readline(), self._seconds)
        except ConnectionError:
            line = b""
        except TimeoutError:
            self._retire()
            return f"the grammar takes more than {self._seconds:g} s to compile: simplify it"
        if not line:
            self._retire()
            return None
        return str(json.loads(line))

    async def _open(self, n_ids: int) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        """The pipes of the process, which ends when nobody asks for a while."""
        loop = asyncio.get_running_loop()
        if self._retires is not None:
            self._retires.cancel()
        self._retires = loop.call_later(IDLE_SECONDS, self._retire)
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await self._start(n_ids)
        if process.stdin is None or process.stdout is None:
            raise KvasirError("the process that compiles grammars has no pipes")
        return process.stdin, process.stdout

    async def _start(self, n_ids: int) -> Process:
        program = (sys.executable, "-m", "kvasir.grammar.trial", str(self._model))
        process = await asyncio.create_subprocess_exec(
            *(*program, str(n_ids), str(self._megabytes)),
            stdin=PIPE,
            stdout=PIPE,
            limit=8 * MAX_BYTES,
        )
        ready = b""
        if process.stdout is not None:
            ready = await asyncio.wait_for(process.stdout.readline(), START_SECONDS)
        if not ready:
            raise KvasirError("the process that compiles grammars did not start: see the log")
        return process

    def _retire(self) -> None:
        process, self._process = self._process, None
        if self._retires is not None:
            self._retires.cancel()
            self._retires = None
        if process is not None and process.returncode is None:
            process.kill()
