"""Images of requests: read by a process that may die of them."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

from msgspec import json

from kvasir.core.errors import CapacityError, KvasirError, RequestError
from kvasir.core.tiles import Slicing
from kvasir.serve.fairlock import FairLock
from kvasir.tokenizer.messages import ImagePart
from kvasir.vision.messages import LENGTH, Answer, Tiles, Unreadable, decoder, framed

MAX_WAITING = 64
"""Requests with images of one owner."""
MEGABYTES = 1024
"""Of one image, decoded and cut."""
SECONDS = 20.0
"""For one image."""
START_SECONDS = 60.0
"""For the process to start, on a busy machine."""
MAX_READ = 4
"""Requests whose images are read at a time: what was read of one is kept until all of it is."""
IDLE_SECONDS = 60.0
"""After which the process ends."""


class ImageReader:
    """One process, started with the first image, which ends when it is idle. Lives in one event
    loop."""

    def __init__(self, *, seconds: float = SECONDS, megabytes: int = MEGABYTES) -> None:
        self._seconds = seconds
        self._megabytes = megabytes
        self._requests = FairLock(MAX_READ)
        self._lock = FairLock()
        self._reading: asyncio.Task[Answer] | None = None
        """The newest; who asked for it may have left."""
        self._process: Process | None = None
        self._retires: asyncio.TimerHandle | None = None

    async def read(
        self, images: Sequence[ImagePart], slicing: Slicing, owner: str = ""
    ) -> list[Tiles]:
        """Tiles of each; ``slicing`` is always that of one model. Raises RequestError (400) on what
        cannot be read, CapacityError (429) when too many of ``owner`` wait. Owners take turns."""
        if self._requests.n_waiting(owner) >= MAX_WAITING:
            raise CapacityError(f"{MAX_WAITING} requests with images wait: try again later")
        async with self._requests.taken(owner):
            return [await self._read(image, slicing, owner) for image in images]

    async def _read(self, image: ImagePart, slicing: Slicing, owner: str) -> Tiles:
        async with self._lock.taken(owner):
            answer = await self._next(image.data, slicing)
        if isinstance(answer, Unreadable):
            raise RequestError(f"{image.where} {answer.message}", param=image.where)
        return answer

    def close(self) -> None:
        """The process ends."""
        self._retire()

    async def _next(self, data: str, slicing: Slicing) -> Answer:
        """The pipes are for one image at a time, also when nobody waits for it any more."""
        if self._reading is not None:
            await asyncio.wait((self._reading,))
        self._reading = asyncio.create_task(self._ask(data, slicing))
        return await asyncio.shield(self._reading)

    async def _ask(self, data: str, slicing: Slicing) -> Answer:
        """Once more where the process died: it may have been of something else."""
        return (
            await self._try(data, slicing)
            or await self._try(data, slicing)
            or Unreadable(f"takes more than {self._megabytes} MB to read: shrink it")
        )

    async def _try(self, data: str, slicing: Slicing) -> Answer | None:
        """None when the process died."""
        given, said = await self._open(slicing)
        try:
            async with asyncio.timeout(self._seconds):
                given.write(framed(data.encode("ascii", "replace")))
                await given.drain()
                return await _frame(said)
        except TimeoutError:
            self._retire()
            return Unreadable(f"takes more than {self._seconds:g} s to read: shrink it")
        except (ConnectionError, asyncio.IncompleteReadError):
            self._retire()
            return None

    async def _open(self, slicing: Slicing) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        """The pipes of the process, which ends when nobody asks for a while."""
        loop = asyncio.get_running_loop()
        if self._retires is not None:
            self._retires.cancel()
        self._retires = loop.call_later(IDLE_SECONDS, self._retire)
        process = self._process
        if process is None or process.returncode is not None:
            process = self._process = await self._start(slicing)
        if process.stdin is None or process.stdout is None:
            raise KvasirError("the process that reads images has no pipes")
        return process.stdin, process.stdout

    async def _start(self, slicing: Slicing) -> Process:
        how = json.encode(slicing).decode()
        program = (sys.executable, "-m", "kvasir.vision.reader", how, str(self._megabytes))
        process = await asyncio.create_subprocess_exec(*program, stdin=PIPE, stdout=PIPE)
        if process.stdout is not None:
            try:
                await asyncio.wait_for(_frame(process.stdout), START_SECONDS)
            except (TimeoutError, asyncio.IncompleteReadError):
                if process.returncode is None:
                    process.kill()
                raise KvasirError(
                    "the process that reads images did not start: see the log"
                ) from None
        return process

    def _retire(self) -> None:
        process, self._process = self._process, None
        if self._retires is not None:
            self._retires.cancel()
            self._retires = None
        if process is not None and process.returncode is None:
            process.kill()


async def _frame(source: asyncio.StreamReader) -> Answer:
    """Raises IncompleteReadError when the process ends."""
    (n,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    answer: Answer = decoder.decode(await source.readexactly(n))
    return answer
