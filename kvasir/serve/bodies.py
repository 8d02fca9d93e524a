"""The memory of request bodies: one budget over all connections, of what has arrived."""

from __future__ import annotations

import asyncio
import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from kvasir.core.errors import KvasirError, RequestError

SMALL_BYTES = 64 * 1024
"""Bodies up to this size are free, so that large ones can never keep small ones out: what they take
is bounded by the number of connections."""
RETRY_SECONDS = 1.0
READERS, LARGE_READERS = 3, 2
"""Bodies that are parsed, and not yet understood, at a time: a thread reads them all, and what they
are parsed to takes several times their bytes."""


class BodiesFull(KvasirError):
    """Other bodies take the memory that is there for them."""

    code = "bodies_full"
    status = 503
    retry_after = RETRY_SECONDS


class BodyBudget:
    """Bytes that have arrived and are not parsed yet.

    Who has sent for longest makes room for others, after ``patience`` seconds: slow bodies keep
    nobody out, and those as fast as others are not ended for them.
    """

    def __init__(
        self,
        limit: int,
        body_limit: int,
        patience: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """At most ``limit`` bytes in all bodies, ``body_limit`` in one."""
        self.body_limit = body_limit
        self.limit = limit
        self.patience = patience
        self._clock = clock
        self._used = 0
        self._arriving: set[Body] = set()
        """Those that have taken of the budget."""
        self._turn = asyncio.Lock()
        self.lanes = asyncio.Semaphore(READERS), asyncio.Semaphore(LARGE_READERS)
        """For what bodies up to ``SMALL_BYTES``, and larger ones, are parsed to: ordinary
        conversations do not wait for texts of megabytes."""

    @contextmanager
    def body(self) -> Iterator[Body]:
        """One body, whose bytes are given back at the end."""
        body = Body(self, self._clock())
        try:
            yield body
        finally:
            self._give_back(body)

    def take(self, body: Body, n_bytes: int) -> None:
        """``n_bytes`` more for ``body``. Raises BodiesFull."""
        while self._used + n_bytes > self.limit:
            self._make_room(body, n_bytes)
        self._used += n_bytes
        body.n_taken += n_bytes
        self._arriving.add(body)

    async def turn(self) -> None:
        """Of a large body to be read from: one in each pass of the event loop, or to copy what has
        arrived of all of them would hold everybody up."""
        async with self._turn:
            await asyncio.sleep(0)

    def complete(self, body: Body) -> None:
        """``body`` waits to be parsed, and makes room for nobody."""
        self._arriving.discard(body)

    def _make_room(self, body: Body, n_bytes: int) -> None:
        oldest = min(self._arriving | {body}, key=lambda one: one.began)
        if oldest is body or self._clock() < oldest.began + self.patience:
            raise BodiesFull(
                f"bodies of {self._used} bytes are arriving, {n_bytes} more exceed the "
                f"{self.limit} bytes of all: try again, or raise --max-body-memory"
            )
        self._give_back(oldest)
        oldest.lose()

    def _give_back(self, body: Body) -> None:
        self._used -= body.n_taken
        body.n_taken = 0
        self._arriving.discard(body)


class Body:
    """What has arrived of one body."""

    def __init__(self, budget: BodyBudget, began: float) -> None:
        self.size = 0
        self.n_taken = 0
        """Of the budget."""
        self.began = began
        self._budget = budget
        self._parts: list[bytes] = []
        self._lost = 0

    @property
    def limit(self) -> int:
        """Bytes that it may have."""
        return self._budget.body_limit

    def add(self, part: bytes) -> None:
        """The next bytes. Raises RequestError (413), and BodiesFull (503) when there is no room for
        them, or when others needed this body's."""
        self._check_kept()
        size = self.size + len(part)
        if size > self._budget.body_limit:
            raise RequestError(
                f"the body exceeds {self._budget.body_limit} bytes",
                code="body_too_large",
                status=413,
            )
        if size > SMALL_BYTES:
            self._budget.take(self, size - self.n_taken)
        self._parts.append(part)
        self.size = size

    def hold(self, n_bytes: int) -> None:
        """Instead of bytes: the memory of what ``n_bytes`` were parsed to, which waits, and makes
        room for nobody. Raises BodiesFull (503)."""
        if n_bytes > SMALL_BYTES:
            self._budget.take(self, n_bytes)
            self._budget.complete(self)

    def complete(self) -> list[bytes]:
        """All of it: nothing more arrives. Raises BodiesFull (503) when others took its room."""
        self._check_kept()
        self._budget.complete(self)
        parts, self._parts = self._parts, []
        return parts

    def lose(self) -> None:
        """Its memory goes to others; its sender learns it with the next bytes, or at its end."""
        self._lost = self.size
        self._parts = []

    def _check_kept(self) -> None:
        if self._lost:
            raise BodiesFull(
                f"others needed the memory of the {self._lost} bytes of this body that were there: "
                "try again, send it faster, or raise --max-body-memory"
            )


def joined(parts: list[bytes]) -> memoryview:
    """The bytes of ``parts``, which are let go one by one. Their memory is the system's own: none
    of it is touched, and the interpreter's lock held, before its part is there."""
    if not (size := sum(map(len, parts))):
        return memoryview(b"")
    whole = memoryview(mmap.mmap(-1, size))[:size]
    start = 0
    for i, part in enumerate(parts):
        parts[i] = b""
        whole[start : start + len(part)] = part
        start += len(part)
    return whole
