"""Images of requests: read by a process that may die of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from msgspec import json

from kvasir.core.errors import CapacityError, KvasirError, RequestError
from kvasir.serve.fairlock import FairLock
from kvasir.serve.lifecycle import Unavailable
from kvasir.serve.workers import WorkerProcess
from kvasir.tokenizer.messages import ImagePart
from kvasir.vision.messages import LENGTH, Answer, Read, Unreadable, decoder, framed
from kvasir.vision.preparing import Preparing

logger = logging.getLogger("kvasir.images")

MAX_WAITING = 64
"""Requests with images of one owner."""
MEGABYTES = 1024
"""Of one image, decoded and cut."""
SECONDS = 20.0
"""For one image."""
MAX_LINE = 2**16
"""Bytes that are read of the process at a time."""
MAX_READ = 4
"""Requests whose images are read at a time: what was read of one is kept until all of it is."""


class ImagesUnread(Unavailable):
    """What reads images died, is stuck, or did not start: another begins with the next image."""

    code = "images_unread"
    retry_after = 1.0


class ImageReader:
    """One process, started with the first image, which ends when it is idle. Lives in one event
    loop."""

    def __init__(self, *, seconds: float = SECONDS, megabytes: int = MEGABYTES) -> None:
        self._seconds = seconds
        self._megabytes = megabytes
        self._requests = FairLock(MAX_READ)
        self._lock = FairLock()
        self._reading: asyncio.Task[Answer | ImagesUnread] | None = None
        """The newest; who asked for it may have left."""
        self._worker = WorkerProcess("reads images", _frame, MAX_LINE)

    async def read(
        self, images: Sequence[ImagePart], slicing: Preparing, owner: str = ""
    ) -> list[Read]:
        """Tiles of each; ``slicing`` is always that of one model. Raises RequestError (400) on what
        cannot be read, ImagesUnread (503) when the process does not answer, CapacityError (429)
        when too many of ``owner`` wait. Owners take turns."""
        if self._requests.n_waiting(owner) >= MAX_WAITING:
            raise CapacityError(f"{MAX_WAITING} requests with images wait: try again later")
        async with self._requests.taken(owner):
            return [await self._read(image, slicing, owner) for image in images]

    async def _read(self, image: ImagePart, slicing: Preparing, owner: str) -> Read:
        async with self._lock.taken(owner):
            answer = await self._next(image.data, slicing)
        if isinstance(answer, Unreadable):
            raise RequestError(f"{image.where} {answer.message}", param=image.where)
        if isinstance(answer, ImagesUnread):
            raise answer
        return answer

    def close(self) -> None:
        """The process ends."""
        self._worker.end()

    async def _next(self, data: str, slicing: Preparing) -> Answer | ImagesUnread:
        """The pipes are for one image at a time, also when nobody waits for it any more."""
        if self._reading is not None:
            await asyncio.wait((self._reading,))
        self._reading = asyncio.create_task(self._ask(data, slicing))
        return await asyncio.shield(self._reading)

    async def _ask(self, data: str, slicing: Preparing) -> Answer | ImagesUnread:
        """Once more where the process died: it may have been of something else."""
        return (
            await self._try(data, slicing)
            or await self._try(data, slicing)
            or ImagesUnread(
                f"the process that reads images died, with {self._megabytes} MB for one: try "
                "again, or send a smaller image"
            )
        )

    async def _try(self, data: str, slicing: Preparing) -> Answer | ImagesUnread | None:
        """None when the process died."""
        arguments = (json.encode(slicing).decode(), str(self._megabytes))
        try:
            given, said = await self._worker.pipes("kvasir.vision.reader", arguments)
        except (KvasirError, OSError) as error:
            logger.error("what reads images did not start: %s", error)
            return ImagesUnread("the process that reads images did not start: try again later")
        try:
            async with asyncio.timeout(self._seconds):
                given.write(framed(data.encode("ascii", "replace")))
                await given.drain()
                return await _frame(said)
        except TimeoutError:
            logger.error("the process that reads images is stuck: it is ended")
            self._worker.end()
            return ImagesUnread(
                f"the process that reads images did not answer in {self._seconds:g} s: try again, "
                "or send a smaller image"
            )
        except (ConnectionError, asyncio.IncompleteReadError):
            logger.error("the process that reads images died")
            self._worker.end()
            return None


async def _frame(source: asyncio.StreamReader) -> Answer:
    """Raises IncompleteReadError when the process ends."""
    (n,) = LENGTH.unpack(await source.readexactly(LENGTH.size))
    answer: Answer = decoder.decode(await source.readexactly(n))
    return answer
