"""What a request waited for in a queue, and who made it wait again."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from kvasir.timing.records import ITS_TURN, Span, StepRecord, Story

WALK = 128
"""Steps looked at before somebody else may have a turn: half a millisecond."""
BREAKS = ("preempted", "replayed")
"""Spans after which a request is computed again."""


class QueueTime(NamedTuple):
    cause: str
    begin: float
    """On the engine's clock."""
    seconds: float

    @property
    def end(self) -> float:
        return self.begin + self.seconds


def waits(
    story: Story, steps: Sequence[StepRecord], n_slots: int, n_blocks: int
) -> Generator[None, None, list[QueueTime]]:
    """All that ``story`` waited for in queues. ``n_slots``: of the engine. ``n_blocks``: that its
    prompt needs."""
    found = list(interruptions(story))
    again = {wait.begin for wait in found}
    for span in story.spans:
        begin = story.arrived + span.at
        if span.kind == "queued" and begin not in again:
            read = _read_seconds(story, span)
            waited = span.seconds - read
            found += yield from _shortage(story.id, steps, begin, waited, n_slots, n_blocks)
            found.append(QueueTime("disk", begin + waited, read))
    return found


def interruptions(story: Story) -> Iterator[QueueTime]:
    """Its waits after it had begun."""
    before: Span | None = None
    for span in story.spans:
        if span.kind == "queued" and before is not None:
            yield QueueTime(broken_by(before), story.arrived + span.at, span.seconds)
        if span.kind in BREAKS:
            before = span


def broken_by(span: Span) -> str:
    """The cause of what is computed again after ``span``."""
    if span.kind == "replayed":
        return "restart"
    return "turn" if span.detail == ITS_TURN else "preemption"


def _read_seconds(story: Story, wait: Span) -> float:
    """At the end of ``wait``, until it started: blocks were read from disk."""
    end = wait.at + wait.seconds
    return sum([x.seconds for x in story.spans if x.kind == "read" and wait.at <= x.at <= end])


def _shortage(
    request_id: int,
    steps: Sequence[StepRecord],
    at: float,
    seconds: float,
    n_slots: int,
    n_blocks: int,
) -> Generator[None, None, list[QueueTime]]:
    """What was short in the steps of a wait, with its part of ``seconds``. Where all places are
    taken, also by somebody who came later, others went first."""
    found: dict[str, float] = {}
    begins: dict[str, float] = {}
    for i, step in enumerate(steps):
        if i % WALK == 0:
            yield
        if not at <= step.at < at + seconds:
            continue
        if step.n_rows < n_slots:
            cause = "blocks" if step.blocks_free < n_blocks else "turn"
        else:
            cause = "turn" if _newest(step) > request_id else "slots"
        begins.setdefault(cause, step.at)
        found[cause] = found.get(cause, 0.0) + step.seconds
    total = sum(found.values())
    if not total:
        return [QueueTime("turn", at, seconds)]
    return [QueueTime(x, begins[x], seconds * part / total) for x, part in found.items()]


def _newest(step: StepRecord) -> int:
    """Who of its requests came last: their numbers only grow."""
    others = (*step.chunks, *step.drafts, *step.forced)
    return max(max(step.decodes, default=0), max([each[0] for each in others], default=0))
