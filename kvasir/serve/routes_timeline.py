"""GET /v1/requests/{id}/timeline and /v1/timeline: why an answer took as long as it took."""

from __future__ import annotations

import time

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.timeline import Span, StepRecord, Story
from kvasir.serve.answer import Json
from kvasir.serve.exchange import Exchange
from kvasir.serve.query import read_count
from kvasir.serve.served import Names
from kvasir.serve.service import Service

MAX_STEPS = 4096
DEFAULT_STEPS = 256


async def get_request_timeline(service: Service, exchange: Exchange) -> None:
    """What happened to each choice of a response of this key. Raises RequestError (404)."""
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
    answer = await service.client.timeline(served.ids)
    epoch = time.time() - answer.clock
    stories = {story.id: story for story in answer.stories}
    choices = [
        _choice(index, stories.get(engine_id), epoch) for index, engine_id in enumerate(served.ids)
    ]
    await exchange.send_json({"id": served.id, "object": "request.timeline", "choices": choices})


async def get_timeline(service: Service, exchange: Exchange) -> None:
    """The last ``steps`` steps of the engine. Requests of other keys are counted, not named."""
    answer = await service.client.timeline(
        (), read_count(exchange, "steps", DEFAULT_STEPS, MAX_STEPS)
    )
    epoch = time.time() - answer.clock
    names = service.served.names(service.owner(exchange))
    steps = [_step(step, names, epoch) for step in answer.steps]
    await exchange.send_json({"object": "timeline", "steps": steps})


async def get_kv_cache(service: Service, exchange: Exchange) -> None:
    """Which share of the KV blocks is used, cached and free, and how full those of each running
    choice are. Requests of other keys are counted, not named."""
    answer = await service.client.timeline((), with_blocks=True)
    stats, (_, info) = service.client.stats, await service.open()
    names = service.served.names(service.owner(exchange))
    rows = [(names.name(x.id), x) for x in answer.holdings]
    await exchange.send_json(
        {
            "object": "kv_cache",
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


def _choice(index: int, story: Story | None, epoch: float) -> Json:
    """A choice that the engine has forgotten says so: responses and choices are kept apart."""
    if story is None:
        return {"index": index, "state": "forgotten", "spans": []}
    return {
        "index": index,
        "state": story.state,
        "arrived": round(epoch + story.arrived, 6),
        "prompt_tokens": story.n_prompt,
        "summary": _summary(story.spans),
        "is_truncated": story.is_truncated,
        "spans": [msgspec.to_builtins(span) for span in story.spans],
    }


def _summary(spans: tuple[Span, ...]) -> Json:
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


def _step(step: StepRecord, names: Names, epoch: float) -> Json:
    rows = [
        *(_row(names, i, "decode", 1) for i in step.decodes),
        *(_row(names, i, "prefill", n, start) for i, start, n in step.chunks),
        *(_row(names, i, "draft", n) for i, n in step.drafts),
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


def _row(names: Names, engine_id: int, kind: str, n_tokens: int, start: int = -1) -> Json | None:
    name = names.name(engine_id)
    if name is None:
        return None
    row: Json = {"id": name, "kind": kind, "tokens": n_tokens}
    return row if start < 0 else {**row, "start": start}
