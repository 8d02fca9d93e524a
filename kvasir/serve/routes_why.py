"""GET /v1/requests/{id}/why: where the time of an answer went, in a sentence and in parts."""

from __future__ import annotations

from kvasir.core.messages import Ready
from kvasir.serve.answers.page import RequestWhy, WhyChoice
from kvasir.serve.exchange import Exchange
from kvasir.serve.routes_timeline import find_served
from kvasir.serve.served import Served
from kvasir.serve.service import Service
from kvasir.serve.slices import Work
from kvasir.timing.cost import CostModel
from kvasir.timing.records import StepRecord, Story
from kvasir.timing.timeline import Timeline
from kvasir.timing.undrafted import SENTENCES as UNDRAFTED
from kvasir.timing.undrafted import undrafted_of
from kvasir.timing.why import (
    MAX_FITTED,
    MAX_STEPS,
    MIN_FITTED,
    Began,
    EnginePlaces,
    explain,
    fitted,
    sentence,
)

MAX_EXPLAINED = 4
"""Choices of one response."""


async def get_request_why(service: Service, exchange: Exchange) -> None:
    """Why each choice of a response of this key took as long as it did. Raises RequestError
    (404)."""
    served = find_served(service, exchange)
    client = service.models[served.model].client
    info = client.info or await client.wait_ready()
    choices = await client.slices.run(_choices(client.timeline, served, info))
    told: RequestWhy = {
        "id": served.id,
        "object": "request.why",
        "model": served.model,
        "choices": choices,
    }
    await exchange.send_json(told)


def _choices(timeline: Timeline, served: Served, info: Ready) -> Work[list[WhyChoice]]:
    """Of many the first few are explained: the others ran beside them."""
    stories = yield from timeline.telling(served.ids)
    costs = yield from _costs(timeline, stories[0])
    found: list[WhyChoice] = []
    for index, story in enumerate(stories):
        if story is None:
            found.append({"index": index, "state": "forgotten"})
        elif index >= MAX_EXPLAINED:
            found.append({"index": index, "state": story.state})
        else:
            found.append((yield from _choice(index, story, timeline, costs, served, info)))
        yield
    return found


def _costs(timeline: Timeline, story: Story | None) -> Work[CostModel | None]:
    """Of the steps around the first choice."""
    if story is None:
        return None
    known = _known(timeline, timeline.steps_of(story.id))
    yield
    return (yield from fitted(known, story.n_prompt)) if len(known) >= MIN_FITTED else None


def _choice(
    index: int,
    story: Story,
    timeline: Timeline,
    costs: CostModel | None,
    served: Served,
    info: Ready,
) -> Work[WhyChoice]:
    steps = timeline.steps_of(story.id)
    yield
    places = EnginePlaces(info.max_num_seqs, info.block_size)
    began = Began(
        min(served.received or story.arrived, story.arrived),
        served.compile_seconds,
        served.waits_for_model,
    )
    why = yield from explain(story, steps[-MAX_STEPS:], costs, places, began)
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


def _known(timeline: Timeline, own: tuple[StepRecord, ...]) -> tuple[StepRecord, ...]:
    """Steps that say what steps cost: rather those before and after a life than its own, which may
    have been slow."""
    recent = timeline.recent(len(own) + 2 * MAX_FITTED)
    if not own:
        return recent
    first, last = own[0].at, own[-1].at
    others = tuple(step for step in recent if not first <= step.at <= last)
    return others if len(others) >= MAX_FITTED // 4 else recent
