"""Sessions: the requests that a client names alike are answered one after another.

A name needs no session that was opened. One that was has a bound on its prompts, and when it is
closed, what its requests left in the cache is not kept for it any more.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from secrets import token_hex
from typing import NamedTuple

from kvasir.core.errors import CapacityError, RequestError
from kvasir.serve.admission import most_for
from kvasir.serve.exchange import Exchange, take

MAX_WAITING = 32
"""Requests of one session that wait for their turn."""
MAX_OPEN = 1_000
"""Sessions that are open, of all keys."""
IDLE_SECONDS = 3600.0
"""After which one is closed that nobody uses."""
MAX_RAN = 64
"""Requests of one session, the newest, that are let go when it is closed."""


class Ran(NamedTuple):
    """A request that has begun."""

    model: str
    """The root of what computes it."""
    ids: range
    """Of its choices, in the engine."""


@dataclass(slots=True)
class _SessionLine:
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Given in the order in which it was asked for."""
    n: int = 0
    """Who has it or waits for it."""


@dataclass(slots=True)
class _OpenSession:
    n_chars: int
    """Most of a prompt."""
    used: float
    ran: deque[Ran] = field(default_factory=lambda: deque(maxlen=MAX_RAN))


class Sessions:
    """A line is there while a session has requests."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[tuple[bytes, str], _SessionLine] = {}
        self._opened: dict[tuple[bytes, str], _OpenSession] = {}

    def __len__(self) -> int:
        return len(self._lines)

    @asynccontextmanager
    async def turn(self, owner: bytes, session: str, exchange: Exchange) -> AsyncIterator[None]:
        """The block runs when those that came before have ended; at once without a session. Raises
        CapacityError (429), ClientGone."""
        if not session:
            yield
            return
        line = self._lines.setdefault((owner, session), _SessionLine())
        if line.n > MAX_WAITING:
            raise CapacityError(
                f"{MAX_WAITING} requests of this session wait: they are answered one after another",
                code="session_busy",
            )
        line.n += 1
        try:
            await take(line.turn, exchange.disconnected)
            try:
                yield
            finally:
                line.turn.release()
        finally:
            line.n -= 1
            if not line.n:
                del self._lines[owner, session]

    def open(self, owner: bytes, session: str, n_chars: int) -> str:
        """Its name, which is drawn where none is given. Raises RequestError (409), CapacityError
        (429)."""
        now = self._clock()
        for place in [x for x, it in self._opened.items() if now - it.used > IDLE_SECONDS]:
            del self._opened[place]
        name = session or f"session-{token_hex(16)}"
        if (owner, name) in self._opened:
            raise RequestError(
                f"the session {name[:64]!r} is open: close it first, or take another session_id",
                param="session_id",
                code="session_exists",
                status=409,
            )
        n_own = sum(of == owner for of, _ in self._opened)
        if len(self._opened) >= most_for(n_own + 1, MAX_OPEN):
            raise CapacityError(
                f"{len(self._opened)} sessions are open: close some", code="too_many_sessions"
            )
        self._opened[owner, name] = _OpenSession(n_chars, now)
        return name

    def check(self, owner: bytes, session: str, n_chars: int) -> None:
        """A prompt of so many characters. Raises RequestError (400) where the session was opened
        for shorter ones."""
        opened = self._opened.get((owner, session))
        if opened is None:
            return
        opened.used = self._clock()
        if n_chars > opened.n_chars:
            raise RequestError(
                f"the prompt has {n_chars} characters, the session was opened for "
                f"{opened.n_chars}: open one with a larger capacity_of_str_len",
                param="session_id",
                code="session_too_long",
            )

    def ran(self, owner: bytes, session: str, request: Ran) -> None:
        opened = self._opened.get((owner, session))
        if opened is not None:
            opened.ran.append(request)

    def close(self, owner: bytes, session: str) -> tuple[Ran, ...]:
        """What it has run. Raises RequestError (404)."""
        opened = self._opened.pop((owner, session), None)
        if opened is None:
            raise RequestError(
                f"no session {session[:64]!r} of this key is open",
                param="session_id",
                code="not_found",
                status=404,
            )
        return tuple(opened.ran)
