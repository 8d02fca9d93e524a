"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from kvasir import __version__
from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.serve.answer import new_envelope
from kvasir.serve.chat_answer import ChatAnswer
from kvasir.serve.completion_answer import CompletionAnswer
from kvasir.serve.exchange import Exchange
from kvasir.serve.generation import Generation
from kvasir.serve.jobs import chat_job, completion_job
from kvasir.serve.protocol import chat, completions
from kvasir.serve.protocol.chat import ChatRequest
from kvasir.serve.protocol.completions import CompletionRequest
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.respond import respond
from kvasir.serve.service import Service


async def post_completions(service: Service, exchange: Exchange) -> None:
    body = await exchange.read_json()
    request, warnings = parse_request(
        CompletionRequest, body, completions.UNSUPPORTED, strict=service.options.strict
    )
    model = service.check_model(request.model)
    text, info = await service.open()
    job = await completion_job(request, text, info, service.draw_seed)
    answer = CompletionAnswer(
        new_envelope("cmpl", "text_completion", model, fingerprint(info), warnings),
        job,
        text.tokenizer,
        echo=request.echo,
        logprobs=request.logprobs is not None,
        silent=completions.scores_only(request),
    )
    async with Generation(
        job, service.client, text.tokenizer, exchange, service.metrics
    ) as generation:
        await respond(generation, answer, exchange, request)


async def post_chat_completions(service: Service, exchange: Exchange) -> None:
    body = await exchange.read_json()
    request, warnings = parse_request(
        ChatRequest, body, chat.UNSUPPORTED, strict=service.options.strict
    )
    model = service.check_model(request.model)
    text, info = await service.open()
    job, notes = await chat_job(request, text, info, service.draw_seed)
    if notes and service.options.strict:
        raise RequestError(notes[0], param="messages", code="unknown_parameter")
    answer = ChatAnswer(
        new_envelope("chatcmpl", "chat.completion", model, fingerprint(info), warnings + notes),
        job,
        text.tokenizer,
        logprobs=request.logprobs,
    )
    async with Generation(
        job, service.client, text.tokenizer, exchange, service.metrics
    ) as generation:
        await respond(generation, answer, exchange, request)


def fingerprint(info: Ready) -> str:
    """Equal fingerprints, seeds and requests give equal answers."""
    return f"kvasir-{__version__}-{info.numerics_id}"
