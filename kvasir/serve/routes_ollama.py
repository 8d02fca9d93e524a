"""What Ollama's clients ask about models."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import msgspec

from kvasir import __version__
from kvasir.core.messages import Ready
from kvasir.serve.answers.ollama import ModelDetails, OllamaCard, Shown
from kvasir.serve.exchange import Exchange
from kvasir.serve.protocol.parse import Allowed, parse_request
from kvasir.serve.resolved import Json
from kvasir.serve.service import Model, Service
from kvasir.serve.text import TextModel

FAR = "9999-12-31T23:59:59Z"
"""When a model is given up: the server keeps it."""


class OllamaShow(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    name: str | None = None
    """Its older name."""


UNSUPPORTED: Allowed = {"verbose": (False,), "system": ("",), "template": ("",), "options": ({},)}


async def get_api_version(service: Service, exchange: Exchange) -> None:
    """Kvasir's own."""
    await exchange.send_json({"version": __version__})


async def get_tags(service: Service, exchange: Exchange) -> None:
    at = _time(service.created)
    models = [await _card(model) for model in service.models.values()]
    await exchange.send_json({"models": [{**card, "modified_at": at} for card in models]})


async def get_ps(service: Service, exchange: Exchange) -> None:
    """All that are served: they are loaded for as long as the server runs."""
    models = []
    for model in service.models.values():
        _, info = await model.open()
        loaded = {"expires_at": FAR, "size_vram": 0, "context_length": info.max_model_len}
        models.append({**await _card(model), **loaded})
    await exchange.send_json({"models": models})


async def post_show(service: Service, exchange: Exchange) -> None:
    def read(body: Json) -> tuple[OllamaShow, tuple[str, ...]]:
        return parse_request(OllamaShow, body, UNSUPPORTED, strict=service.options.strict)

    async with exchange.reading(read) as (request, warnings):
        name = request.model or request.name
        model = service.check_model(name and name.removesuffix(":latest"))
        text, info = await model.open()
    family, capabilities = text.facts.family, await _capabilities(service, text, info)
    answer: Shown = {
        "modelfile": "",
        "parameters": "",
        "template": text.template.text or "",
        "details": _details(text),
        "model_info": {
            "general.architecture": family,
            "general.parameter_count": text.facts.n_parameters,
            f"{family}.context_length": info.max_model_len,
        },
        "capabilities": capabilities,
        "modified_at": _time(service.created),
    }
    if warnings:
        answer["warnings"] = list(warnings)
    await exchange.send_json(answer)


async def _capabilities(service: Service, text: TextModel, info: Ready) -> list[str]:
    """By Ollama's names."""
    found = ["completion" if info.vectors.writes else "embedding"]
    if text.sight is not None:
        found.append("vision")
    if info.vectors.writes and text.template.problem is None:
        calls = await text.calls(service.options.tool_format)
        found += ["tools"] if calls.format is not None else []
        thinks = await asyncio.to_thread(lambda: text.reasoning is not None)
        found += ["thinking"] if thinks else []
    return found


async def _card(model: Model) -> OllamaCard:
    text, info = await model.open()
    return {
        "name": model.name,
        "model": model.name,
        "size": text.facts.n_bytes,
        "digest": _digest(info),
        "details": _details(text),
    }


def _digest(info: Ready) -> str:
    """Equal for models that give equal answers."""
    return info.key_root


def _details(text: TextModel) -> ModelDetails:
    facts = text.facts
    return {
        "parent_model": "",
        "format": facts.format,
        "family": facts.family,
        "families": [facts.family],
        "parameter_size": facts.size,
        "quantization_level": facts.quantization,
    }


def _time(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
