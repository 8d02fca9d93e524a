"""From turning points and steps to the spans that explain one request."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence

import msgspec

from kvasir.core.timeline import Mark, Span, StepRecord

PIECE = 256
"""Steps looked at before somebody else may have a turn: about a tenth of a millisecond."""


def spans_of(
    request_id: int, marks: Sequence[Mark], steps: Iterable[StepRecord]
) -> Generator[None, None, tuple[Span, ...]]:
    """The life of a request in order; yields after every few steps. ``marks`` begin with its
    arrival."""
    writer = _Writer(marks[0].at)
    waiting = list(reversed(marks))
    members: tuple[int, ...] = ()
    is_member = False
    for number, step in enumerate(steps, start=1):
        if number % PIECE == 0:
            yield
        if step.decodes is not members:  # shared by steps in a row
            members, is_member = step.decodes, request_id in step.decodes
        mine = is_member or _has(request_id, step)
        if not mine:
            continue
        while waiting and waiting[-1].at <= step.at and waiting[-1].kind != "finished":
            writer.mark(waiting.pop())
        writer.step(request_id, step, is_member)
    for mark in reversed(waiting):
        writer.mark(mark)
    return writer.done()


def _has(request_id: int, step: StepRecord) -> bool:
    return any(item[0] == request_id for item in (*step.chunks, *step.drafts))


class _Run:
    """Consecutive decode steps."""

    def __init__(self, first: StepRecord) -> None:
        self.first = first
        self.end = first.at
        self.n_steps = 0
        self.n_tokens = 0
        self.slowest = 0.0

    def add(self, step: StepRecord, n_tokens: int) -> None:
        end = step.at + step.seconds
        self.slowest = max(self.slowest, end - self.end)
        self.end = end
        self.n_steps += 1
        self.n_tokens += n_tokens


class _Writer:
    """Turns marks and steps, in order, into spans."""

    def __init__(self, arrived: float) -> None:
        self._arrived = arrived
        self._spans: list[Span] = []
        self._since = arrived
        self._run: _Run | None = None

    def mark(self, mark: Mark) -> None:
        self._flush()
        at = mark.at - self._arrived
        if mark.kind == "queued":
            return
        if mark.kind == "started":
            self._add("queued", self._since - self._arrived, seconds=mark.at - self._since)
            if mark.n_tokens:
                self._add("prefix_hit", at, tokens=mark.n_tokens)
            return
        if mark.kind == "preempted":
            self._since = mark.at
        self._add(mark.kind, at, tokens=mark.n_tokens, detail=mark.detail)

    def step(self, request_id: int, step: StepRecord, is_decode: bool) -> None:
        n_tokens = 1 if is_decode else next((n for i, n in step.drafts if i == request_id), 0)
        if n_tokens:
            self._run = self._run or _Run(step)
            self._run.add(step, n_tokens)
            return
        self._flush()
        start, n_tokens = next((s, n) for i, s, n in step.chunks if i == request_id)
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

    def done(self) -> tuple[Span, ...]:
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
            step=run.first.step,
            steps=run.n_steps,
            slowest=round(run.slowest, 6),
        )
        self._spans.append(span)

    def _add(self, kind: str, at: float, *, seconds: float = 0.0, **more: int | str) -> None:
        span = Span(kind, round(at, 6), round(max(0.0, seconds), 6))
        self._spans.append(msgspec.structs.replace(span, **more))
