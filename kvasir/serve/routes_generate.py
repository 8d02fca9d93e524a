"""POST /v1/completions and /v1/chat/completions."""

from __future__ import annotations

from kvasir import __version__
from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.sampling.reference import DRAWS
from kvasir.serve.answer import Answer, Json, new_envelope
from kvasir.serve.beams import BeamJob, respond_beams
from kvasir.serve.chat_answer import ChatAnswer
from kvasir.serve.completion_answer import CompletionAnswer
from kvasir.serve.echo import read_echoes
from kvasir.serve.exchange import Exchange
from kvasir.serve.generation import Generation, Job
from kvasir.serve.jobs import Server, chat_job, completion_job
from kvasir.serve.protocol import chat, completions
from kvasir.serve.protocol.chat import ChatRequest
from kvasir.serve.protocol.completions import CompletionRequest
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.protocol.sampling import SamplingFields
from kvasir.serve.respond import respond
from kvasir.serve.served import Served
from kvasir.serve.service import Model, Service
from kvasir.serve.text import TextModel
from kvasir.tokenizer.messages import Conversation, read_messages


async def post_completions(service: Service, exchange: Exchange) -> None:
    def read(body: Json) -> tuple[CompletionRequest, tuple[str, ...]]:
        strict = service.options.strict
        return parse_request(CompletionRequest, body, completions.UNSUPPORTED, strict=strict)

    async with exchange.reading(read) as (request, warnings):
        model = service.check_model(request.model)
        server = await _server(service, model)
        named = fingerprint(server.info)
        job = await completion_job(request, server, exchange.arrived)
        answer = CompletionAnswer(
            new_envelope("cmpl", "text_completion", model.name, named, warnings),
            job,
            server.text.tokenizer,
            echoes=await read_echoes(request, job.prompts, server.text.tokenizer),
            logprobs=request.logprobs is not None,
            silent=completions.scores_only(request),
        )
    await _generate(service, model, exchange, server.text, job, answer, request)


async def post_chat_completions(service: Service, exchange: Exchange) -> None:
    def read(body: Json) -> tuple[ChatRequest, tuple[str, ...], Conversation]:
        request, warnings = parse_request(
            ChatRequest, body, chat.UNSUPPORTED, strict=service.options.strict
        )
        return request, warnings, read_messages(request.messages)

    async with exchange.reading(read) as (request, warnings, (messages, notes)):
        if notes and service.options.strict:
            raise RequestError(notes[0], param="messages", code="unknown_parameter")
        model = service.check_model(request.model)
        server = await _server(service, model)
        named = fingerprint(server.info)
        job = await chat_job(request, messages, server, exchange.arrived)
        answer = ChatAnswer(
            new_envelope("chatcmpl", "chat.completion", model.name, named, warnings + notes),
            job,
            server.text.tokenizer,
            logprobs=request.logprobs,
        )
    await _generate(service, model, exchange, server.text, job, answer, request)


async def _generate(
    service: Service,
    model: Model,
    exchange: Exchange,
    text: TextModel,
    job: Job,
    answer: Answer,
    fields: SamplingFields,
) -> None:
    timeout = service.options.request_timeout
    if fields.use_beam_search:
        search = BeamJob(
            job, fields.length_penalty, model.client, text.tokenizer, model.metrics, timeout
        )
        return await respond_beams(search, answer, exchange)
    async with Generation(
        job, model.client, text.tokenizer, exchange, model.metrics, timeout
    ) as generation:
        first, owner = generation.first_id, service.owner(exchange)
        service.served.add(Served(answer.envelope.id, first, job.n_choices, owner, model.root))
        await respond(generation, answer, exchange, fields)


async def _server(service: Service, model: Model) -> Server:
    text, info = await model.open()
    limits, slices = model.client.limits, model.client.slices
    most = service.options.max_answer_logprobs
    return Server(text, info, limits, slices, service.draw_seed, most, model.context)


def fingerprint(info: Ready) -> str:
    """Equal fingerprints, seeds and requests give equal answers."""
    return f"kvasir-{__version__}-{info.numerics_id}:draws-{DRAWS}"
