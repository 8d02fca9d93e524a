"""What was computed when: a bounded ring of steps, and the turning points of every request.

A step costs a few microseconds. Steps whose decoding requests are those of the step before share
one tuple of ids, so that a long generation needs about 200 bytes a step whatever its batch.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from msgspec import structs

from kvasir.core.plan import StepPlan, StepResult
from kvasir.timing.records import Mark, Span, StepRecord, Story
from kvasir.timing.story import Life, spans_of
from kvasir.timing.undrafted import KIND as UNDRAFTED

MAX_STEPS = 32_768
MAX_ENTRIES = 131_072
"""Ids and chunks that the ring holds over all its steps: with them at most 24 MB (measured)."""
MAX_FINISHED = 4096
"""Finished requests whose turning points are kept."""
MAX_MARKS = 256
"""Turning points of one request."""
NOTHING: Mapping[int, int] = MappingProxyType({})


@dataclass(slots=True)
class _OpenLife:
    first: int
    """Steps recorded when it arrived."""
    marks: list[Mark]
    n_dropped: int = 0
    end: int = -1
    """Steps recorded when it finished; -1 before."""


class Timeline:
    """Not thread-safe. ``clock`` gives seconds; all times here are its.

    What happens is told to ``listener``, if there is one; another timeline whose ``add`` is given
    the same, in the same order, is a copy.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        *,
        max_steps: int = MAX_STEPS,
        max_entries: int = MAX_ENTRIES,
        max_finished: int = MAX_FINISHED,
    ) -> None:
        self.clock = clock
        self.listener: Callable[[StepRecord | Mark], object] | None = None
        self._max_steps = max_steps
        self._max_entries = max_entries
        self._max_finished = max_finished
        self._ring: deque[tuple[StepRecord, int]] = deque()
        self._n_entries = 0
        self._n_recorded = 0
        self._decodes: tuple[int, ...] = ()
        self._live: dict[int, _OpenLife] = {}
        self._finished: OrderedDict[int, _OpenLife] = OrderedDict()

    def __len__(self) -> int:
        return len(self._ring)

    @property
    def n_entries(self) -> int:
        return self._n_entries

    @property
    def live(self) -> Collection[int]:
        """Requests that have not finished."""
        return self._live.keys()

    def queued(self, request_id: int, n_prompt: int) -> None:
        """A request arrived."""
        self._tell(Mark(request_id, self.clock(), "queued", n_prompt))

    def mark(
        self,
        request_id: int,
        kind: str,
        n_tokens: int = 0,
        detail: str = "",
        since: float | None = None,
    ) -> None:
        """A turning point; ``kind`` is "started", or one of ``Span``'s without duration, or
        "compiled" or "read", which began at ``since``."""
        if request_id in self._live:
            at = self.clock() if since is None else since
            self._tell(Mark(request_id, at, kind, n_tokens, detail))

    def undrafted(self, request_id: int, counts: Mapping[str, int]) -> None:
        """A request that ends had no drafts in so many decode steps, by their reasons."""
        for reason, n_steps in counts.items():
            self.mark(request_id, UNDRAFTED, n_steps, reason)

    def finished(self, request_id: int, reason: str) -> None:
        """A request ended; it is remembered until ``max_finished`` others have ended after it."""
        self.mark(request_id, "finished", 0, reason)

    def add(self, item: StepRecord | Mark) -> None:
        """What happened next."""
        if isinstance(item, StepRecord):
            self._add_step(item)
        else:
            self._add_mark(item)

    def step(
        self,
        plan: StepPlan,
        ids: Sequence[int],
        result: StepResult,
        *,
        n_waiting: int,
        blocks_free: int,
        n_decodes: int = 0,
        forced: Mapping[int, int] = NOTHING,
        towers: Sequence[tuple[int, int]] = (),
    ) -> None:
        """A step was computed; ``ids`` names the request of each row. ``n_decodes``: rows at the
        start of which the caller knows that they decode one token. ``forced``: by their indices
        the rows of forced tokens, and how many these have. ``towers``: (request, tokens computed
        before) of those for whom pieces of towers ran."""
        decodes, chunks, drafts = list(ids[:n_decodes]), [], []
        for i, request_id in enumerate(ids[n_decodes:], n_decodes):
            row = plan.rows[i]
            n_tokens = len(row.tokens)
            if i in forced:
                continue
            if row.out_index and n_tokens == 1:
                decodes.append(request_id)
            elif row.n_logits == n_tokens > 1 and not row.targets:
                drafts.append((request_id, n_tokens))
            else:
                chunks.append((request_id, row.start, n_tokens))
        chunks += [(i, start, 0) for i, start in towers if i not in ids]
        at = result.began or self.clock() - result.seconds
        record = StepRecord(
            plan.step,
            at,
            result.seconds,
            tuple(decodes),
            tuple(chunks),
            tuple(drafts),
            tuple([(ids[i], n_tokens) for i, n_tokens in forced.items()]),
            n_waiting,
            blocks_free,
            tuple([i for i, _ in towers]),
            result.tower_seconds,
        )
        self._add_step(record)
        if self.listener is not None:
            self.listener(record)

    def started(self, request_id: int) -> float | None:
        """When a request was started for the first time; None when that is not known."""
        life = self._live.get(request_id) or self._finished.get(request_id)
        marks = () if life is None else life.marks
        return next((mark.at for mark in marks if mark.kind == "started"), None)

    def hit(self, request_id: int) -> int:
        """Tokens of its prompt that a request found computed when it started; 0 where that is not
        known."""
        life = self._live.get(request_id) or self._finished.get(request_id)
        marks = () if life is None else life.marks
        return next((mark.n_tokens for mark in marks if mark.kind == "started"), 0)

    def recent(self, n_steps: int) -> tuple[StepRecord, ...]:
        """The last ``n_steps`` steps that are remembered, oldest first."""
        return self._slice(self._n_recorded - n_steps, self._n_recorded)

    def steps_of(self, request_id: int, n_most: int = MAX_STEPS) -> tuple[StepRecord, ...]:
        """The steps of a request's life that are remembered, with its rows and without: the newest
        ``n_most``, oldest first."""
        life = self._live.get(request_id) or self._finished.get(request_id)
        if life is None:
            return ()
        end = self._end(life)
        return self._slice(max(life.first, end - n_most), end)

    def beside(self, request_id: int, n_steps: int) -> tuple[StepRecord, ...]:
        """The newest ``n_steps`` before and after a request's life, oldest first."""
        life = self._live.get(request_id) or self._finished.get(request_id)
        if life is None:
            return self.recent(n_steps)
        after = self._slice(max(self._end(life), self._n_recorded - n_steps), self._n_recorded)
        return (*self._slice(life.first - n_steps + len(after), life.first), *after)

    def version(self, ids: Collection[int]) -> tuple[tuple[int, int], ...]:
        """What changes with what is told of these requests. Of those that ended it does not, until
        they are forgotten."""
        lives = (self._live.get(i) or self._finished.get(i) for i in ids)
        return tuple([(len(x.marks) + x.n_dropped, self._end(x)) if x else (0, 0) for x in lives])

    def story(self, request_id: int) -> Story | None:
        """What happened to a request; None when it is not known, or no more."""
        telling = self.telling((request_id,))
        while True:
            try:
                next(telling)
            except StopIteration as end:
                (story,) = end.value
                found: Story | None = story
                return found

    def telling(self, ids: Collection[int]) -> Generator[None, None, list[Story | None]]:
        """``story`` of each request, in pieces of a fraction of a millisecond: all of them in one
        pass over their steps. What happens between two pieces is no part of it."""
        known = {i: x for i in ids if (x := self._live.get(i) or self._finished.get(i))}
        oldest = self._n_recorded - len(self._ring)
        start = max(oldest, min((life.first for life in known.values()), default=oldest))
        stop = max((self._end(life) for life in known.values()), default=start)
        steps = self._slice(start, stop)
        lives = {
            i: Life(tuple(life.marks), life.first - start, self._end(life) - start)
            for i, life in known.items()
        }
        truncated = {i for i, life in known.items() if life.first < oldest or life.n_dropped}
        spans = yield from spans_of(lives, steps)
        stories: list[Story | None] = []
        for i in ids:
            told = i in lives
            stories.append(_story(i, lives[i].marks, spans[i], i in truncated) if told else None)
            yield
        return stories

    def _end(self, life: _OpenLife) -> int:
        """Steps recorded when it ended, so far for one that lives."""
        return self._n_recorded if life.end < 0 else life.end

    def _tell(self, mark: Mark) -> None:
        self._add_mark(mark)
        if self.listener is not None:
            self.listener(mark)

    def _add_step(self, record: StepRecord) -> None:
        size = 1 + len(record.chunks) + len(record.drafts) + len(record.forced)
        if record.decodes == self._decodes:
            record = structs.replace(record, decodes=self._decodes)
        else:
            self._decodes = record.decodes
            size += len(record.decodes)
        self._ring.append((record, size))
        self._n_recorded += 1
        self._n_entries += size
        while len(self._ring) > self._max_steps or self._n_entries > self._max_entries:
            self._n_entries -= self._ring.popleft()[1]

    def _add_mark(self, mark: Mark) -> None:
        life = self._live.get(mark.id)
        if life is None:
            if mark.kind == "queued":
                self._finished.pop(mark.id, None)
                self._live[mark.id] = _OpenLife(self._n_recorded, [mark])
            return
        if mark.kind == "queued":
            mark = structs.replace(mark, kind="replayed")  # by another engine
        if len(life.marks) < MAX_MARKS or mark.kind == "finished":
            life.marks.append(mark)
        else:
            life.n_dropped += 1
        if mark.kind == "finished":
            self._forget(mark.id)

    def _forget(self, request_id: int) -> None:
        """A request ended, and the one that ended longest ago is not remembered any more."""
        life = self._live.pop(request_id)
        life.end = self._n_recorded
        self._finished[request_id] = life
        while len(self._finished) > self._max_finished:
            self._finished.popitem(last=False)

    def _slice(self, first: int, end: int) -> tuple[StepRecord, ...]:
        """Steps [first, end) in the order of recording, as far as they are remembered."""
        oldest = self._n_recorded - len(self._ring)
        start, stop = max(0, first - oldest), max(0, end - oldest)
        return tuple(record for record, _ in islice(self._ring, start, stop))


def _story(
    request_id: int, marks: tuple[Mark, ...], spans: tuple[Span, ...], is_truncated: bool
) -> Story:
    queued = marks[0]
    return Story(request_id, queued.at, queued.n_tokens, _state(marks), spans, is_truncated)


def _state(marks: Sequence[Mark]) -> str:
    if marks[-1].kind == "finished":
        return "finished"
    last = next(m.kind for m in reversed(marks) if m.kind != "prefix_hit")
    return "waiting" if last in ("queued", "preempted", "replayed") else "running"
