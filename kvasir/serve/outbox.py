"""What the engine process tells: frames that are small enough to be read in a moment."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import TypeVar

from msgspec import structs

from kvasir.core.messages import StepEvents, TokenEvent
from kvasir.serve import frames
from kvasir.serve.messages import FromEngine, News
from kvasir.timing.records import Mark, StepRecord
from kvasir.timing.timeline import Timeline

MAX_ITEMS = 256
"""Events or news of one frame, which the other side reads in one piece: about a millisecond."""
SCORES = 128
"""Scores of a prompt in one event, which are read in one piece: about a millisecond, with 20
alternatives each."""
SCORES_BYTES = 2**12
"""Of scores: to pass them on takes as long as an event."""

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
        parts += [frames.encode(StepEvents(part, said.stats)) for part in _frames(said.events)]
        self._sock.sendall(b"".join(parts))


def _parts(items: tuple[Item, ...]) -> list[tuple[Item, ...]]:
    return [items[i : i + MAX_ITEMS] for i in range(0, len(items), MAX_ITEMS)]


def _frames(events: tuple[TokenEvent, ...]) -> Iterator[tuple[TokenEvent, ...]]:
    """At least one."""
    part: list[TokenEvent] = []
    weight = 0
    for event in events:
        for piece in _packed(event):
            if weight >= MAX_ITEMS:
                yield tuple(part)
                part, weight = [], 0
            part.append(piece)
            weight += 1 + len(piece.scores) // SCORES_BYTES
    yield tuple(part)


def _packed(event: TokenEvent) -> Iterator[TokenEvent]:
    """``event`` after those that hold the scores for which it has no room. A failure has none."""
    scores = event.prompt_logprobs if event.error is None else ()
    if not event.prompt_logprobs:
        yield event
        return
    last = max(0, len(scores) - 1) // SCORES * SCORES
    for first in range(0, last, SCORES):
        packed = frames.encode_scores(scores[first : first + SCORES])
        yield TokenEvent(event.id, scores=packed, n_scores=SCORES)
    packed = frames.encode_scores(scores[last:])
    n_scores = len(scores) - last
    yield structs.replace(event, prompt_logprobs=(), scores=packed, n_scores=n_scores)
