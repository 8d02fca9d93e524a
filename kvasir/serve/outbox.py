"""What the engine process tells: frames that are small enough to be read in a moment."""

from __future__ import annotations

import socket
from typing import TypeVar

from kvasir.core.messages import FromEngine, News, StepEvents
from kvasir.core.timeline import Mark, StepRecord
from kvasir.sched.timeline import Timeline
from kvasir.serve import frames

MAX_ITEMS = 256
"""Events or news of one frame, which the other side reads in one piece: about a millisecond."""


Item = TypeVar("Item")


class Outbox:
    """Blocks while the other side reads slowly. Raises OSError when it is gone."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._news: list[StepRecord | Mark] = []

    def explain(self, timeline: Timeline) -> None:
        """Tells from now on what ``timeline`` is told."""
        timeline.listener = self._news.append

    def send(self, message: FromEngine) -> None:
        self._sock.sendall(frames.encode(message))

    def step(self, said: StepEvents) -> None:
        """The news of a step, what explains them first."""
        parts = [frames.encode(News(part)) for part in _parts(tuple(self._news))]
        self._news.clear()
        events = _parts(said.events) or [()]
        parts += [frames.encode(StepEvents(part, said.stats)) for part in events]
        self._sock.sendall(b"".join(parts))


def _parts(items: tuple[Item, ...]) -> list[tuple[Item, ...]]:
    return [items[i : i + MAX_ITEMS] for i in range(0, len(items), MAX_ITEMS)]
