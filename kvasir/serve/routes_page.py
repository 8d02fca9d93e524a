"""GET /v1/page: what the page must know before it asks for anything, in one answer."""

from __future__ import annotations

import math

from kvasir import __version__
from kvasir.config.serving import image_limit
from kvasir.core.params import MAX_LOGPROBS, DrawParams
from kvasir.serve.answers.page import PageFacts, PageField, PageModel
from kvasir.serve.exchange import Exchange
from kvasir.serve.query import read_query
from kvasir.serve.service import Service
from kvasir.validation.sampling import Field, SamplingParams, fields_of

UNBOUNDED = 1e9
"""Stands for no upper bound, which JSON cannot say."""


async def get_page(service: Service, exchange: Exchange) -> None:
    """Models, fields with their bounds, limits, and what the key may do."""
    read_query(exchange, ())
    models: list[PageModel] = []
    for model in service.models.values():
        text, info = await model.open()
        sees = text.sight is not None
        models.append({"id": model.name, "max_model_len": info.max_model_len, "sees": sees})
    _, info = await service.default.open()
    facts: PageFacts = {
        "object": "page",
        "version": __version__,
        "models": models,
        "fields": [_told(field) for field in fields_of(DrawParams) if field.bounds is not None],
        "max_n": _most("n"),
        "max_logprobs": MAX_LOGPROBS,
        "max_images": image_limit(service.options.limit_mm_per_prompt),
        "max_body_bytes": service.options.max_body_bytes,
        "block_size": info.block_size,
        "max_num_seqs": info.max_num_seqs,
        "drafter": info.drafter,
        "scopes": sorted(exchange.caller.scopes),
    }
    await exchange.send_json(facts)


def _told(field: Field) -> PageField:
    assert field.bounds is not None
    high = field.bounds.high
    return {
        "name": field.name,
        "kind": "int" if field.kind is int else "float",
        "default": field.default,
        "low": field.bounds.low,
        "high": high if math.isfinite(high) else UNBOUNDED,
        "above_low": field.bounds.open_low,
        "help": field.help,
    }


def _most(name: str) -> int:
    """The upper bound of a field of requests."""
    bounds = next(x.bounds for x in fields_of(SamplingParams) if x.name == name)
    return 1 if bounds is None else int(bounds.high)
