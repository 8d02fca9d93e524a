"""Why a request took as long as it did: each of its seconds is given to one cause.

What it would cost alone follows from a cost model that is fitted to steps of the same engine. Of a
step that it shared, its own part is what it costs alone; what is expected of the others' rows is
theirs; what is beyond both is the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

import msgspec

from kvasir.timing.cost import CostModel, Load, chunk_load
from kvasir.timing.records import StepRecord, Story
from kvasir.timing.waits import BREAKS, WALK, broken_by, interruptions, waits

LEAST_SECONDS = 0.05
LEAST_SHARE = 0.1
"""Of the whole time: a cause of less than either is not worth naming."""
MAIN_SHARE = 0.5
"""Of the time alone: a prompt that takes more than this is a cause like those of others."""
MIN_FITTED = 32
"""Steps that a cost model needs before it says anything."""
MAX_FITTED = 384
"""Steps that it is fitted to: the newest of those that are known."""
MAX_STEPS = 8192
"""Of a life, the newest: what is before them is not explained."""
PIECE = 16
"""Steps fitted before somebody else may have a turn: a third of a millisecond."""

SLOWED = 1.2
"""Of what its steps were expected to take: where they took more, so did what is between them."""

OWN = ("prompt", "answer")
"""Causes that a request has alone, too."""


class TimePart(NamedTuple):
    """Seconds of one cause; ``at`` counts from when the request was received."""

    cause: str
    at: float
    seconds: float


class EnginePlaces(NamedTuple):
    """Sizes of the engine that requests wait for."""

    n_slots: int
    block_size: int


class Began(NamedTuple):
    """How a request began, before the engine had it."""

    received: float
    """When the server had it, on the engine's clock."""
    compile_seconds: float = 0.0
    """That its constraint was compiled."""
    waits_for_model: bool = False
    """Whether the model was loaded or started meanwhile."""
    has_masks: bool = False
    """Whether it has a constraint: between two of its steps it waits for a mask."""


Unread = Callable[[float], float]
"""Seconds behind a time of the engine's clock in which events waited for a slow reader."""


def all_read(moment: float) -> float:
    """Of events that waited for nobody."""
    return 0.0


class Why(msgspec.Struct, frozen=True):
    seconds: float
    """From when it was received until its end, or the last that is known; of one whose client read
    slowly until that had it."""
    alone: float
    """That it is expected to take on an idle engine."""
    parts: tuple[TimePart, ...]
    """One of each cause that took any time, in the order in which they began."""
    cause: str | None
    """Of most of the time that it would not have taken alone, or of its prompt, where that is most
    of what it takes alone and more than any of these; None where nothing is worth naming."""


def fitted(steps: Sequence[StepRecord], n_usual: int) -> Generator[None, None, CostModel]:
    """A cost model of what ``steps`` took. Who decoded how far is not recorded: each row is taken
    to see ``n_usual`` tokens."""
    costs = CostModel()
    for i, step in enumerate(steps[-MAX_FITTED:]):
        if step.n_tokens:
            costs.observe(_load(step, n_usual), step.seconds - step.tower_seconds)
        if i % PIECE == 0:
            yield
    return costs


def explain(
    story: Story,
    steps: Sequence[StepRecord],
    costs: CostModel | None,
    places: EnginePlaces,
    began: Began,
    unread: Unread = all_read,
) -> Generator[None, None, Why]:
    """``steps``: those of its life, in order, at most ``MAX_STEPS``. ``costs``: None where too few
    steps are known to say what is whose. ``unread``: of what was told of it; what waited while
    later tokens were computed delayed nothing."""
    received = began.received
    bill = _Bill(received)
    before = max(0.0, story.arrived - received)
    made = sum([span.seconds for span in story.spans if span.kind == "compiled"])  # by the engine
    grammar = min(before, began.compile_seconds + made)
    bill.add("grammar", received, grammar)
    rest = "load" if began.waits_for_model else "before"
    bill.add(rest, received + grammar, before - grammar)
    end = yield from _waits(bill, story, steps, places)
    between = "grammar" if began.has_masks else "engine"
    alone, end = yield from _Steps(bill, story, costs, between).walk(steps, end)
    end = max(end, story.arrived)
    late = unread(end)
    bill.add("reader", end, late)
    return bill.why(end + late - received, alone)


class _Bill:
    """Seconds by cause."""

    def __init__(self, received: float) -> None:
        self._received = received
        self._begins: dict[str, float] = {}
        self._seconds: dict[str, float] = {}

    def add(self, cause: str, at: float, seconds: float) -> None:
        """``at`` is the engine's clock's."""
        if seconds <= 0:
            return
        self._begins.setdefault(cause, at - self._received)
        self._seconds[cause] = self._seconds.get(cause, 0.0) + seconds

    def why(self, seconds: float, alone: float) -> Why:
        parts = [
            TimePart(cause, round(self._begins[cause], 6), round(spent, 6))
            for cause, spent in self._seconds.items()
            if spent > 1e-6
        ]
        parts.sort(key=lambda part: part.at)
        long = [x for x in parts if x.cause == "prompt" and x.seconds > MAIN_SHARE * alone]
        causes = [part for part in parts if part.cause not in OWN] + long
        most = max(causes, key=lambda part: part.seconds, default=None)
        is_much = most is not None and most.seconds > max(LEAST_SECONDS, LEAST_SHARE * seconds)
        if most is None or not is_much:
            return Why(round(seconds, 6), round(alone, 6), tuple(parts), None)
        return Why(round(seconds, 6), round(alone, 6), tuple(parts), most.cause)


def _waits(
    bill: _Bill, story: Story, steps: Sequence[StepRecord], places: EnginePlaces
) -> Generator[None, None, float]:
    """Bills what it waited for before its rows; returns when the last span ended."""
    n_blocks = -(-story.n_prompt // places.block_size)
    for wait in (yield from waits(story, steps, places.n_slots, n_blocks)):
        bill.add(wait.cause, wait.begin, wait.seconds)
    ends = [story.arrived + x.at + max(x.seconds, 0.0) for x in story.spans]
    return max([story.arrived, *ends])


class _Steps:
    """Bills the steps of a request, one after another."""

    def __init__(self, bill: _Bill, story: Story, costs: CostModel | None, between: str) -> None:
        """``between``: what it waits for between its steps."""
        self._cause_between = between
        self._bill = bill
        self._story = story
        self._costs = costs
        self._n_seen = story.n_prompt
        """Tokens that its next decoded row sees."""
        self._computed = 0
        """Tokens that were computed once."""
        self._breaks = [
            (story.arrived + x.at, broken_by(x)) for x in story.spans if x.kind in BREAKS
        ]
        self._waits = list(interruptions(story))
        self._members: tuple[int, ...] = ()
        """Who decoded in the last step that was looked at, and whether it was among them."""
        self._is_member = False
        self._first: dict[str, float] = {}
        """When its first step of each cause began."""
        self._expected: dict[str, float] = {}
        """Seconds of the steps that are expected of each cause."""
        self._measured = 0.0
        """Seconds of all of them."""
        self._between = 0.0
        """Seconds between two in which nothing is known to have happened."""

    def walk(
        self, steps: Sequence[StepRecord], end: float
    ) -> Generator[None, None, tuple[float, float]]:
        """Seconds that it costs alone, and when its last row ended."""
        alone, last = 0.0, 0.0
        for i, step in enumerate(steps):
            if i % WALK == 0:
                yield
            row = self._row(step)
            if row is None:
                continue
            if last:
                self._gap(last, step.at)
            alone += self._step(step, row)
            last = step.at + step.seconds
        return alone * self._settle(), max(end, last)

    def _row(self, step: StepRecord) -> OwnRow | None:
        """Steps whose decoding requests are the same share one tuple of them."""
        if step.decodes is not self._members:
            self._members = step.decodes
            self._is_member = self._story.id in step.decodes
        return OwnRow("decode", 1) if self._is_member else row_of(step, self._story.id)

    def _settle(self) -> float:
        """Bills the steps, all together: single ones vary. Returns by how much they were shorter
        than expected; what they were longer is the machine's."""
        expected = sum(self._expected.values())
        scale = min(1.0, self._measured / expected) if expected else 1.0
        for cause, seconds in self._expected.items():
            self._bill.add(cause, self._first[cause], seconds * scale)
        self._bill.add("machine", min(self._first.values(), default=0.0), self._measured - expected)
        is_slowed = self._measured > SLOWED * expected
        between = "machine" if is_slowed else self._cause_between
        self._bill.add(between, self._first.get("between", 0.0), self._between)
        return scale

    def _expect(self, cause: str, at: float, seconds: float) -> None:
        if seconds > 0:
            self._first.setdefault(cause, at)
            self._expected[cause] = self._expected.get(cause, 0.0) + seconds

    def _gap(self, last: float, begin: float) -> None:
        """Between two of its steps; but for what it waited in a queue."""
        waits = [x for x in self._waits if x.begin < begin and last < x.end]
        if not waits:
            self._first.setdefault("between", last)
            self._between += begin - last
            return
        waited = sum([min(begin, x.end) - max(last, x.begin) for x in waits])
        self._bill.add(waits[-1].cause, last, begin - last - waited)

    def _step(self, step: StepRecord, row: OwnRow) -> float:
        """Bills one; returns what its row costs alone, if that was not computed before."""
        cause, again = self._own(row, step.at)
        self._measured += step.seconds
        if self._costs is None:
            self._expect(cause, step.at, step.seconds)
            return 0.0 if again else step.seconds
        own, chunks, decodes = self._shares(step, row, self._costs)
        self._expect(cause, step.at, own)
        self._expect("others_prompts", step.at, chunks)
        self._expect("others_answers", step.at, decodes)
        return 0.0 if again else own

    def _shares(
        self, step: StepRecord, row: OwnRow, costs: CostModel
    ) -> tuple[float, float, float]:
        """Seconds that the request's own row costs alone, others' chunks, and their answers."""
        n_decodes = len(step.decodes) - (row.kind == "decode")
        if row.kind == "decode" and not (step.chunks or step.drafts or step.forced or step.towers):
            each = costs.chunk_seconds(1, self._n_seen)  # as most steps are
            return costs.costs.step + each, 0.0, n_decodes * each
        own = costs.step_seconds(_row_load(row, self._n_seen))
        chunks, decodes = _others(step, self._story.id, self._n_seen, n_decodes)
        towers = step.tower_seconds
        is_own = self._story.id in step.towers
        own, others = (own + towers, 0.0) if is_own else (own, towers)
        return own, costs.beyond(chunks) + others, costs.beyond(decodes)

    def _own(self, row: OwnRow, at: float) -> tuple[str, bool]:
        """Whose fault the request's own row is, and whether it was computed before."""
        if row.kind != "prefill":
            self._n_seen += row.n_tokens
            self._computed = self._n_seen
            return "answer", False
        end = row.start + row.n_tokens
        if row.start >= self._computed:
            self._computed = end
            return "prompt", False
        passed = [cause for when, cause in self._breaks if when <= at]
        return passed[-1] if passed else "preemption", True


class OwnRow(NamedTuple):
    """What a request has of a step: a "decode" of one token, one that is "several" (drafted or
    forced ones with it), or a "prefill"."""

    kind: str
    n_tokens: int
    start: int = 0


def row_of(step: StepRecord, request_id: int) -> OwnRow | None:
    """But for a decode of one token."""
    for i, start, n in step.chunks:
        if i == request_id:
            return OwnRow("prefill", n, start)
    for i, n in (*step.drafts, *step.forced):
        if i == request_id:
            return OwnRow("several", n)
    return None


def _row_load(row: OwnRow, n_seen: int) -> Load:
    return chunk_load(row.n_tokens, row.start if row.kind == "prefill" else n_seen)


def _load(step: StepRecord, n_usual: int) -> Load:
    chunks, decodes = _others(step, -1, n_usual, len(step.decodes))
    return chunks.plus(decodes)


def _others(step: StepRecord, request_id: int, n_seen: int, n_decodes: int) -> tuple[Load, Load]:
    """Chunks and decoded rows of all but one request; ``n_decodes`` of these are of one token."""
    chunks = Load()
    for i, start, n in step.chunks:
        if i != request_id:
            chunks = chunks.plus(chunk_load(n, start))
    each = chunk_load(1, n_seen)
    decodes = Load(*(n_decodes * x for x in each))
    for i, n in (*step.drafts, *step.forced):
        if i != request_id:
            decodes = decodes.plus(chunk_load(n, n_seen))
    return chunks, decodes
