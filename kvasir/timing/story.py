"""From turning points and steps to the spans that explain requests."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator, Mapping, Sequence
from math import inf

import msgspec

from kvasir.timing.records import Mark, Span, StepRecord, Story
from kvasir.timing.undrafted import KIND as UNDRAFTED

PIECE = 256
"""Steps and prompts looked at before somebody else may have a turn: about a tenth of a millisecond,
one where each belongs to a request that is asked for."""


def until(story: Story, moment: float) -> Story:
    """What happened before ``moment``, on the engine's clock."""
    left = moment - story.arrived
    spans = [
        msgspec.structs.replace(x, seconds=min(x.seconds, left - x.at))
        for x in story.spans
        if x.at < left
    ]
    return msgspec.structs.replace(story, spans=tuple(spans))


class Life(msgspec.Struct, frozen=True):
    """What belongs to one request."""

    marks: tuple[Mark, ...]
    """They begin with its arrival."""
    first: int
    end: int
    """Steps [first, end), by their place among those that are looked at."""


def spans_of(
    lives: Mapping[int, Life], steps: Sequence[StepRecord]
) -> Generator[None, None, dict[int, tuple[Span, ...]]]:
    """The lives of requests, by their ids, each in order; yields after every few steps and every
    part of a life. However many are asked for, each step is looked at once, and who decodes once
    for all steps in a row that decode the same."""
    writers = {}
    for i, life in lives.items():
        writers[i] = _Writer(life)
        yield
    stretch = _Stretch(0, ())
    n_seen = 0
    for number, step in enumerate(steps):
        n_seen += 1 + len(step.chunks) + len(step.drafts) + len(step.forced)
        if n_seen >= PIECE:
            yield
            n_seen = 0
        if step.decodes is not stretch.members:
            yield from _tell(stretch, writers)
            stretch = _Stretch(number, step.decodes)
        stretch.add(step)
        for i, start, n_tokens in step.chunks:
            if i in writers:
                writers[i].chunk(number, step, start, n_tokens)
        for i, n_tokens in step.drafts:
            if i in writers:
                writers[i].several(number, step, n_tokens)
        for i, n_tokens in step.forced:
            if i in writers:
                writers[i].several(number, step, n_tokens, n_forced=n_tokens - 1)
    yield from _tell(stretch, writers)
    spans = {}
    for i, writer in writers.items():
        spans[i] = writer.done()
        yield
    return spans


class _Stretch:
    """Steps in a row that decode the same requests."""

    def __init__(self, first: int, members: tuple[int, ...]) -> None:
        self.first = first
        self.members = members
        self.steps: list[StepRecord] = []
        self._gaps: list[float] = []
        """Before the end of each step since that of the one before."""
        self._end = 0.0
        self._slowest: dict[tuple[int, int], float] = {}

    def add(self, step: StepRecord) -> None:
        end = _end(step)
        self._gaps.append(end - self._end)
        self._end = end
        self.steps.append(step)

    def slowest(self, start: int, stop: int) -> float:
        """Longest time between the ends of two of the steps [start, stop)."""
        key = start, stop
        if key not in self._slowest:
            self._slowest[key] = max(self._gaps[start + 1 : stop], default=0.0)
        return self._slowest[key]


def _tell(stretch: _Stretch, writers: dict[int, _Writer]) -> Generator[None, None, None]:
    for i in writers.keys() & stretch.members:
        writers[i].decodes(stretch)
        yield


def _end(step: StepRecord) -> float:
    return step.at + step.seconds


class _Run:
    """Consecutive decode steps."""

    def __init__(self, first: StepRecord) -> None:
        self.first = first
        self.end = first.at
        self.n_steps = 0
        self.n_tokens = 0
        self.n_forced = 0
        self.slowest = 0.0

    def add(self, stretch: _Stretch, start: int, stop: int) -> None:
        """Steps [start, stop) of ``stretch``, one token each."""
        n_steps = stop - start
        self._add(stretch.steps[start], n_steps, n_steps)
        self.slowest = max(self.slowest, stretch.slowest(start, stop))
        self.end = _end(stretch.steps[stop - 1])

    def add_several(self, step: StepRecord, n_tokens: int, n_forced: int) -> None:
        self._add(step, 1, n_tokens)
        self.n_forced += n_forced

    def _add(self, step: StepRecord, n_steps: int, n_tokens: int) -> None:
        end = _end(step)
        self.slowest = max(self.slowest, end - self.end)
        self.end = end
        self.n_steps += n_steps
        self.n_tokens += n_tokens


class _Writer:
    """Turns marks and steps, in order, into spans."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._waiting = list(reversed(life.marks))
        self._arrived = self._since = life.marks[0].at
        self._spans: list[Span] = []
        self._run: _Run | None = None
        self._is_waiting = True
        self._read: Mark | None = None
        """What is being read for it from disk."""

    def decodes(self, stretch: _Stretch) -> None:
        """What of ``stretch`` lies in this life, cut where a mark falls."""
        start = max(0, self._life.first - stretch.first)
        stop = min(len(stretch.steps), self._life.end - stretch.first)
        while start < stop:
            self._hear(stretch.steps[start])
            cut = bisect_left(stretch.steps, self._next_mark(), start + 1, stop, key=_began)
            self._running(stretch.steps[start]).add(stretch, start, cut)
            start = cut

    def several(self, number: int, step: StepRecord, n_tokens: int, *, n_forced: int = 0) -> None:
        """A row of drafted tokens, or of forced ones."""
        if self._life.first <= number < self._life.end:
            self._hear(step)
            self._running(step).add_several(step, n_tokens, n_forced)

    def chunk(self, number: int, step: StepRecord, start: int, n_tokens: int) -> None:
        if not self._life.first <= number < self._life.end:
            return
        self._hear(step)
        self._flush()
        self._add(
            "prefill",
            step.at - self._arrived,
            seconds=step.seconds,
            tokens=n_tokens,
            start=start,
            step=step.step,
            steps=1,
            rows=step.n_rows,
        )

    def _running(self, step: StepRecord) -> _Run:
        """The run that ``step`` goes on, or begins."""
        self._run = self._run or _Run(step)
        return self._run

    def _next_mark(self) -> float:
        """When the next mark fell that steps come after."""
        if self._waiting and self._waiting[-1].kind not in ("finished", UNDRAFTED):
            return self._waiting[-1].at
        return inf

    def _hear(self, step: StepRecord) -> None:
        """The marks before ``step``."""
        while self._next_mark() <= step.at:
            self._mark(self._waiting.pop())

    def _mark(self, mark: Mark) -> None:
        self._flush()
        at = mark.at - self._arrived
        if mark.kind == "queued":
            return
        if mark.kind == "read":
            self._read = mark
            return
        if self._is_waiting and mark.kind in ("started", "finished"):
            self._is_waiting = False
            self._add("queued", self._since - self._arrived, seconds=mark.at - self._since)
        if mark.kind == "started":
            self._tell_read(mark.at)
            if mark.n_tokens:
                self._add("prefix_hit", at, tokens=mark.n_tokens)
            return
        if mark.kind == UNDRAFTED:
            self._add(mark.kind, at, steps=mark.n_tokens, detail=mark.detail)
            return
        if mark.kind == "compiled":
            self._add("compiled", at, seconds=-at)
            return
        if mark.kind in ("preempted", "replayed"):
            self._since, self._is_waiting = mark.at, True
        self._add(mark.kind, at, tokens=mark.n_tokens, detail=mark.detail)

    def _tell_read(self, end: float) -> None:
        read, self._read = self._read, None
        if read is not None:
            at = read.at - self._arrived
            self._add("read", at, seconds=end - read.at, tokens=read.n_tokens)

    def done(self) -> tuple[Span, ...]:
        while self._waiting:
            self._mark(self._waiting.pop())
        self._flush()
        return tuple(self._spans)

    def _flush(self) -> None:
        """The decode steps so far are one span."""
        run, self._run = self._run, None
        if run is None:
            return
        span = Span(
            "decode",
            round(run.first.at - self._arrived, 6),
            round(run.end - run.first.at, 6),
            tokens=run.n_tokens,
            forced=run.n_forced,
            step=run.first.step,
            steps=run.n_steps,
            slowest=round(run.slowest, 6),
        )
        self._spans.append(span)

    def _add(self, kind: str, at: float, *, seconds: float = 0.0, **more: int | str) -> None:
        span = Span(kind, round(at, 6), round(max(0.0, seconds), 6))
        self._spans.append(msgspec.structs.replace(span, **more))


def _began(step: StepRecord) -> float:
    return step.at
