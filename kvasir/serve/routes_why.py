"""GET /v1/requests/{id}/why: where the time of an answer went, in a sentence and in parts."""

from __future__ import annotations

from kvasir.core.messages import Ready
from kvasir.serve.answers.page import RequestWhy, WhyChoice
from kvasir.serve.exchange import Exchange
from kvasir.serve.routes_timeline import find_served
from kvasir.serve.served import Served
from kvasir.serve.service import Service
from kvasir.serve.slices import Work
from kvasir.timing.records import StepRecord, Story
from kvasir.timing.timeline import Timeline
from kvasir.timing.why import MAX_FITTED, MIN_FITTED, Began, EnginePlaces, explain, fitted, sentence


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
    stories = yield from timeline.telling(served.ids)
    found: list[WhyChoice] = []
    for index, story in enumerate(stories):
        if story is None:
            found.append({"index": index, "state": "forgotten"})
        else:
            found.append((yield from _choice(index, story, timeline, served, info)))
        yield
    return found


def _choice(
    index: int, story: Story, timeline: Timeline, served: Served, info: Ready
) -> Work[WhyChoice]:
    steps = timeline.steps_of(story.id)
    yield
    known = _known(timeline, steps)
    costs = (yield from fitted(known, story.n_prompt)) if len(known) >= MIN_FITTED else None
    places = EnginePlaces(info.max_num_seqs, info.block_size)
    began = Began(
        min(served.received or story.arrived, story.arrived),
        served.compile_seconds,
        served.waits_for_model,
    )
    why = explain(story, steps, costs, places, began)
    yield
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
        "is_truncated": story.is_truncated,
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
