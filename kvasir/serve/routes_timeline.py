"""GET /v1/requests/{id}/timeline and /v1/timeline: why an answer took as long as it took."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.answers.own import ChoiceStory, RowKind, SpanSummary, StepAnswer, StepRow
from kvasir.serve.exchange import Exchange
from kvasir.serve.query import read_count
from kvasir.serve.resolved import Json
from kvasir.serve.served import ClientNames, Served
from kvasir.serve.service import Model, Service
from kvasir.serve.slices import Work
from kvasir.timing.records import Span, StepRecord, Story
from kvasir.timing.timeline import Timeline

_json = msgspec.json.Encoder()
MAX_STEPS = 4096
DEFAULT_STEPS = 256
PART_STEPS = 64
"""Sent at a time: an answer of thousands of steps is never held as a whole."""


async def get_request_timeline(service: Service, exchange: Exchange) -> None:
    """What happened to each choice of a response of this key. Raises RequestError (404)."""
    served = find_served(service, exchange)
    client = service.models[served.model].client
    choices = await client.slices.run(_stories(client.timeline, served))
    head: Json = {"id": served.id, "object": "request.timeline", "model": served.model}
    if served.compile_seconds:
        head["compile_seconds"] = round(served.compile_seconds, 6)
    await exchange.send_json({**head, "choices": choices})


def find_served(service: Service, exchange: Exchange) -> Served:
    """The response that a path names. Raises RequestError (404)."""
    response_id = str(exchange.path_params["request_id"])[:256]
    served = service.served.get(response_id, service.owner(exchange))
    if served is None:
        raise RequestError(
            f"no request {response_id!r} is remembered: use the id of one of the last responses, "
            "with the key that it was asked with",
            param="id",
            code="not_found",
            status=404,
        )
    return served


async def get_timeline(service: Service, exchange: Exchange) -> None:
    """The last ``steps`` steps of the engine. Requests of other keys are counted, not named."""
    n_steps = read_count(exchange, "steps", DEFAULT_STEPS, MAX_STEPS)
    model, owner = service.default, service.owner(exchange)
    slices = model.client.slices
    names, records = await slices.run(_recent(service, model, owner, n_steps))
    epoch = _epoch(model.client.timeline)
    await exchange.start_json()
    name = _json.encode(model.root)
    await exchange.send_events(b'{"object":"timeline","model":' + name + b',"steps":[')
    for first in range(0, len(records), PART_STEPS):
        part = records[first : first + PART_STEPS]
        steps = await slices.run(_steps(part, names, epoch))
        await exchange.send_events((b"," if first else b"") + b",".join(steps))
    await exchange.send_events(b"]}")
    await exchange.end_events()


async def get_kv_cache(service: Service, exchange: Exchange) -> None:
    """Which share of the KV blocks is used, cached and free, and how full those of each running
    choice are. Requests of other keys are counted, not named."""
    model = service.default
    holdings = await model.client.holdings()
    stats, (_, info) = model.client.stats, await model.open()
    names = service.served.names(service.owner(exchange), model.root)
    rows = [(names.name(x.id), x) for x in holdings]
    await exchange.send_json(
        {
            "object": "kv_cache",
            "model": model.root,
            "block_size": info.block_size,
            "blocks": stats.blocks_total,
            "blocks_free": stats.blocks_free,
            "blocks_cached": stats.blocks_cached,
            "running": len(rows),
            "requests": [
                {"id": name, "tokens": x.n_tokens, "blocks": x.n_blocks}
                for name, x in rows
                if name is not None
            ],
        }
    )


def _epoch(timeline: Timeline) -> float:
    """Unix time at which the timeline's clock said 0."""
    return time.time() - timeline.clock()


def _recent(
    service: Service, model: Model, owner: bytes, n_steps: int
) -> Work[tuple[ClientNames, tuple[StepRecord, ...]]]:
    yield
    return service.served.names(owner, model.root), model.client.timeline.recent(n_steps)


def _stories(timeline: Timeline, served: Served) -> Work[list[msgspec.Raw]]:
    epoch = _epoch(timeline)
    stories = yield from timeline.telling(served.ids)
    choices = []
    for index, story in enumerate(stories):
        choices.append(msgspec.Raw(_json.encode(_choice(index, story, epoch))))
        yield
    return choices


def _steps(records: Sequence[StepRecord], names: ClientNames, epoch: float) -> Work[list[bytes]]:
    steps = []
    for record in records:
        steps.append(_json.encode(_step(record, names, epoch)))
        yield
    return steps


def _choice(index: int, story: Story | None, epoch: float) -> ChoiceStory:
    """A choice that the engine has forgotten says so: responses and choices are kept apart."""
    if story is None:
        return {"index": index, "state": "forgotten", "spans": ()}
    return {
        "index": index,
        "state": story.state,
        "arrived": round(epoch + story.arrived, 6),
        "prompt_tokens": story.n_prompt,
        "summary": _summary(story.spans),
        "is_truncated": story.is_truncated,
        "spans": story.spans,
    }


def _summary(spans: tuple[Span, ...]) -> SpanSummary:
    def seconds(kind: str) -> float:
        return round(sum(span.seconds for span in spans if span.kind == kind), 6)

    def count(kind: str) -> int:
        return sum(span.kind == kind for span in spans)

    return {
        "queued_seconds": seconds("queued"),
        "prefill_seconds": seconds("prefill"),
        "decode_seconds": seconds("decode"),
        "chunks": count("prefill"),
        "decode_steps": sum(span.steps for span in spans if span.kind == "decode"),
        "cached_tokens": sum(span.tokens for span in spans if span.kind == "prefix_hit"),
        "preemptions": count("preempted"),
        "swaps": count("swapped_in"),
    }


def _step(step: StepRecord, names: ClientNames, epoch: float) -> StepAnswer:
    rows = [
        *(_row(names, i, "decode", 1) for i in step.decodes),
        *(_row(names, i, "prefill", n, start) for i, start, n in step.chunks),
        *(_row(names, i, "draft", n) for i, n in step.drafts),
        *(_row(names, i, "forced", n) for i, n in step.forced),
    ]
    return {
        "step": step.step,
        "at": round(epoch + step.at, 6),
        "seconds": round(step.seconds, 6),
        "rows": step.n_rows,
        "tokens": step.n_tokens,
        "decodes": len(step.decodes),
        "waiting": step.n_waiting,
        "blocks_free": step.blocks_free,
        "requests": [row for row in rows if row is not None],
    }


def _row(
    names: ClientNames, engine_id: int, kind: RowKind, n_tokens: int, start: int = -1
) -> StepRow | None:
    name = names.name(engine_id)
    if name is None:
        return None
    row: StepRow = {"id": name, "kind": kind, "tokens": n_tokens}
    if start >= 0:
        row["start"] = start
    return row
