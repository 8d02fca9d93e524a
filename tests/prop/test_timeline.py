"""The lives of many requests, told in one pass, against looking at every step for each of them."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvasir.timing.records import Mark, StepRecord, Story
from kvasir.timing.timeline import Timeline

IDS = range(3)
MAX_STEPS = 24
KINDS = ("prefill", "decode", "decode", "decode", "draft", "rest")
TURNS = ("queued", "started", "preempted", "swapped_in", "finished")

moments = st.tuples(
    st.sampled_from((0.0, 0.25, 1.0)),
    st.one_of(
        st.tuples(st.sampled_from(IDS), st.sampled_from(TURNS)),
        st.integers(1, 4),
        st.lists(st.sampled_from(KINDS), min_size=len(IDS), max_size=len(IDS)),
    ),
)
"""Time that passes, then a turning point, more steps like the last, or another step."""


class World:
    """A timeline, and all that was told to it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timeline = Timeline(lambda: self.now, max_steps=MAX_STEPS)
        self.marks: dict[int, list[tuple[int, Mark]]] = {}
        """With the number of steps before each."""
        self.steps: list[StepRecord] = []
        self._kinds = ["decode"] * len(IDS)

    def turn(self, i: int, kind: str) -> None:
        mark = Mark(i, self.now, kind, 3)
        lives = i in self.marks and self.marks[i][-1][1].kind != "finished"
        self.timeline.add(mark)
        if kind == "queued" and lives:
            mark = Mark(i, self.now, "replayed", 3)  # another engine was told of it
        elif kind == "queued":
            self.marks[i] = []
        elif not lives:
            return
        self.marks[i].append((len(self.steps), mark))

    def step(self, kinds: list[str] | None) -> None:
        self._kinds = self._kinds if kinds is None else kinds
        who = {kind: [i for i in IDS if self._kinds[i] == kind] for kind in KINDS}
        chunks = tuple((i, len(self.steps), 2) for i in who["prefill"])
        drafts = tuple((i, 3) for i in who["draft"])
        record = StepRecord(len(self.steps), self.now, 0.125, tuple(who["decode"]), chunks, drafts)
        self.steps.append(record)
        self.timeline.add(record)

    def told(self, i: int) -> list[tuple[object, ...]]:
        """Each span of a life by its kind, beginning, length and numbers."""
        first, marks = self.marks[i][0][0], [mark for _, mark in self.marks[i]]
        end = self.marks[i][-1][0] if marks[-1].kind == "finished" else len(self.steps)
        kept = max(first, len(self.steps) - MAX_STEPS)
        events: list[Mark | StepRecord] = []
        left = list(marks)
        for step in self.steps[kept:end]:
            if not _n_tokens(i, step) and not _chunk(i, step):
                continue
            while left and left[0].kind != "finished" and left[0].at <= step.at:
                events.append(left.pop(0))
            events.append(step)
        return _spans(i, marks[0].at, [*events, *left])


def _n_tokens(i: int, step: StepRecord) -> int:
    """Of a decode step."""
    return 1 if i in step.decodes else dict(step.drafts).get(i, 0)


def _chunk(i: int, step: StepRecord) -> tuple[int, ...]:
    return next((chunk for chunk in step.chunks if chunk[0] == i), ())


def _spans(i: int, arrived: float, events: Sequence[Mark | StepRecord]) -> list[tuple[object, ...]]:
    spans: list[tuple[object, ...]] = []
    run: list[StepRecord] = []
    since, is_waiting = arrived, True
    for event in [*events, None]:
        if isinstance(event, StepRecord) and _n_tokens(i, event):
            run.append(event)
            continue
        if run:
            ends = [run[0].at, *(step.at + step.seconds for step in run)]
            slowest = max(after - before for before, after in pairwise(ends))
            n_tokens = sum(_n_tokens(i, step) for step in run)
            spans.append(
                ("decode", run[0].at - arrived, ends[-1] - ends[0], n_tokens, len(run), slowest)
            )
            run = []
        if isinstance(event, StepRecord):
            spans.append(("prefill", event.at - arrived, 0.125, 2, 1, 0.0))
        elif event is not None and event.kind != "queued":
            if is_waiting and event.kind in ("started", "finished"):
                spans.append(("queued", since - arrived, event.at - since, 0, 0, 0.0))
                is_waiting = False
            if event.kind in ("preempted", "replayed"):
                since, is_waiting = event.at, True
            kind = "prefix_hit" if event.kind == "started" else event.kind
            spans.append((kind, event.at - arrived, 0.0, 3, 0, 0.0))
    return spans


@given(st.lists(moments, max_size=60))
def test_one_pass_tells_what_every_life_tells_alone(
    script: list[tuple[float, tuple[int, str] | int | list[str]]],
) -> None:
    world = World()
    for i in IDS[:2]:
        world.turn(i, "queued")
    for seconds, what in script:
        world.now += seconds
        if isinstance(what, tuple):
            world.turn(*what)
        elif isinstance(what, int):
            for _ in range(what):
                world.now += 0.25
                world.step(None)
        else:
            world.step(what)
    together = _finish(world.timeline.telling(IDS))
    for i, story in zip(IDS, together, strict=True):
        assert (story is None) == (i not in world.marks)
        if story is not None:
            spans = [(s.kind, s.at, s.seconds, s.tokens, s.steps, s.slowest) for s in story.spans]
            assert spans == world.told(i)
            assert story == world.timeline.story(i)


def _finish(telling: Generator[None, None, list[Story | None]]) -> list[Story | None]:
    found: list[list[Story | None]] = []

    def run() -> Generator[None, None, None]:
        found.append((yield from telling))

    for _ in run():
        continue
    return found[0]
