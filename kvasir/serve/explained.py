"""Why responses took as long as they did: told once, until their stories change."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from kvasir.core.messages import Ready
from kvasir.serve.answers.page import WhyChoice
from kvasir.serve.client import AsyncClient
from kvasir.serve.served import Served
from kvasir.serve.slices import Work
from kvasir.timing.cost import CostModel
from kvasir.timing.records import StepRecord, Story
from kvasir.timing.sentences import sentence
from kvasir.timing.story import until
from kvasir.timing.timeline import Timeline
from kvasir.timing.undrafted import SENTENCES as UNDRAFTED
from kvasir.timing.undrafted import undrafted_of
from kvasir.timing.why import (
    MAX_FITTED,
    MAX_STEPS,
    MIN_FITTED,
    Began,
    EnginePlaces,
    Unread,
    all_read,
    explain,
    fitted,
)

MAX_EXPLAINED = 4
"""Choices of one response."""
MAX_KEPT = 256
"""Responses: about 2 kB each."""


class Explanations:
    """The last ``limit`` that were asked for. To make one of a long answer takes some 50 ms of a
    core, in slices; what is kept stays the same while steps that it is made of are forgotten."""

    def __init__(self, limit: int = MAX_KEPT) -> None:
        self._limit = limit
        self._kept: OrderedDict[str, tuple[Hashable, list[WhyChoice]]] = OrderedDict()

    async def choices(self, client: AsyncClient, served: Served) -> list[WhyChoice]:
        """Of each choice of the response."""
        info = client.info or await client.wait_ready()
        waits = 0.0 if served.backpressure is None else served.backpressure.version
        version = client.timeline.version(served.ids), waits
        before = self._kept.get(served.id)
        if before is not None and before[0] == version:
            self._kept.move_to_end(served.id)
            return before[1]
        told = await client.slices.run(explained(client.timeline, served, info))
        self._kept[served.id] = version, told
        while len(self._kept) > self._limit:
            self._kept.popitem(last=False)
        return told

    async def before(self, client: AsyncClient, served: Served, moment: float) -> WhyChoice:
        """What the first choice waited for until ``moment``, on the engine's clock."""
        info = client.info or await client.wait_ready()
        return await client.slices.run(explained_before(client.timeline, served, info, moment))


def explained_before(
    timeline: Timeline, served: Served, info: Ready, moment: float
) -> Work[WhyChoice]:
    (story,) = yield from timeline.telling((served.first,))
    costs = yield from _costs(timeline, story)
    if story is None:
        return {"index": 0, "state": "forgotten"}
    steps = timeline.steps_of(story.id)
    steps = steps[: bisect_left(steps, moment, key=lambda step: step.at)]
    yield
    return (yield from _choice(0, until(story, moment), steps, costs, served, info))


def explained(timeline: Timeline, served: Served, info: Ready) -> Work[list[WhyChoice]]:
    """Of many choices the first few are explained: the others ran beside them. A slow reader is
    told of the one that ended last: before that there was more to come."""
    stories = yield from timeline.telling(served.ids)
    costs = yield from _costs(timeline, stories[0])
    ends = [_finished(story) for story in stories if story is not None]
    last = max(ends[:MAX_EXPLAINED], default=0.0) if all(ends) else 0.0
    found: list[WhyChoice] = []
    for index, story in enumerate(stories):
        if story is None:
            found.append({"index": index, "state": "forgotten"})
        elif index >= MAX_EXPLAINED:
            found.append({"index": index, "state": story.state})
        else:
            unread = all_read
            if served.backpressure is not None and 0.0 < last == _finished(story):
                unread = served.backpressure.after
            steps = timeline.steps_of(story.id, MAX_STEPS + 1)
            yield
            told = _choice(index, story, steps, costs, served, info, unread)
            found.append((yield from told))
        yield
    return found


def _finished(story: Story) -> float:
    """When the engine was done with it; 0 before that."""
    return story.arrived + story.spans[-1].at if story.state == "finished" else 0.0


def _costs(timeline: Timeline, story: Story | None) -> Work[CostModel | None]:
    """Of the steps around the first choice: rather those before and after a life than its own,
    which may have been slow."""
    if story is None:
        return None
    others = timeline.beside(story.id, MAX_FITTED)
    yield
    known = others if len(others) >= MAX_FITTED // 4 else timeline.recent(MAX_FITTED)
    yield
    return (yield from fitted(known, story.n_prompt)) if len(known) >= MIN_FITTED else None


def _choice(
    index: int,
    story: Story,
    steps: Sequence[StepRecord],
    costs: CostModel | None,
    served: Served,
    info: Ready,
    unread: Unread = all_read,
) -> Work[WhyChoice]:
    places = EnginePlaces(info.max_num_seqs, info.block_size)
    began = Began(
        min(served.received or story.arrived, story.arrived),
        served.compile_seconds,
        served.waits_for_model,
        served.has_masks,
    )
    why = yield from explain(story, steps[-MAX_STEPS:], costs, places, began, unread)
    what, remedy = sentence(why, places)
    return {
        "index": index,
        "state": story.state,
        "seconds": why.seconds,
        "alone_seconds": why.alone,
        "cause": why.cause,
        "sentence": what,
        "remedy": remedy,
        "parts": [{"cause": x.cause, "at": x.at, "seconds": x.seconds} for x in why.parts],
        "undrafted": [
            {"reason": x.reason, "steps": x.n_steps, "sentence": UNDRAFTED.get(x.reason, "")}
            for x in undrafted_of(story.spans)
        ],
        "is_truncated": story.is_truncated or len(steps) > MAX_STEPS,
    }
