"""A process for what may take or break more than a server can stand."""

from __future__ import annotations

import asyncio
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from kvasir.core.errors import KvasirError
from kvasir.serve.interpreter import module_command

START_SECONDS = 60.0
"""For the process to start, on a busy machine."""
END_SECONDS = 5.0
"""For one to end that has closed its pipes."""
IDLE_SECONDS = 60.0
"""After which it ends."""


class Pipes(NamedTuple):
    given: asyncio.StreamWriter
    said: asyncio.StreamReader


class WorkerProcess:
    """A module of the package that answers what it is given. It starts when it is asked for, and
    ends when nobody asks for a while. Lives in one event loop."""

    def __init__(
        self, does: str, greets: Callable[[asyncio.StreamReader], Awaitable[object]], max_line: int
    ) -> None:
        """``does``: for errors, as in "compiles grammars". ``greets`` returns once it says that it
        is there, and raises IncompleteReadError when it ends before. ``max_line``: bytes."""
        self._does = does
        self._greets = greets
        self._max_line = max_line
        self._process: Process | None = None
        self._retires: asyncio.TimerHandle | None = None

    async def pipes(self, module: str, arguments: Sequence[str]) -> Pipes:
        """Of the process that runs, or of a new one. Raises KvasirError when it does not start."""
        if self._retires is not None:
            self._retires.cancel()
        self._retires = asyncio.get_running_loop().call_later(IDLE_SECONDS, self.end)
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await self._start(module, arguments)
        return self._of(process)

    @property
    def pid(self) -> int | None:
        """Of the process, which may have ended."""
        return None if self._process is None else self._process.pid

    async def status(self) -> int:
        """Of the process, which says nothing any more: as ``Popen.returncode``. One that has not
        ended soon is ended."""
        process = self._process
        if process is None:
            return 0
        try:
            return await asyncio.wait_for(process.wait(), END_SECONDS)
        except TimeoutError:
            self.end()
            return -signal.SIGKILL

    def end(self) -> None:
        """Now, whatever it does."""
        process, self._process = self._process, None
        if self._retires is not None:
            self._retires.cancel()
            self._retires = None
        if process is not None and process.returncode is None:
            process.kill()

    async def _start(self, module: str, arguments: Sequence[str]) -> Process:
        process = await asyncio.create_subprocess_exec(
            *(*module_command(module), *arguments),
            stdin=PIPE,
            stdout=PIPE,
            limit=self._max_line,
        )
        try:
            await asyncio.wait_for(self._greets(self._of(process).said), START_SECONDS)
        except (TimeoutError, asyncio.IncompleteReadError):
            if process.returncode is None:
                process.kill()
            raise KvasirError(f"the process that {self._does} did not start: see the log") from None
        return process

    def _of(self, process: Process) -> Pipes:
        if process.stdin is None or process.stdout is None:
            raise KvasirError(f"the process that {self._does} has no pipes")
        return Pipes(process.stdin, process.stdout)
