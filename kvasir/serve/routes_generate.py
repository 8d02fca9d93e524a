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
from kvasir.serve.service import Service
from kvasir.serve.text import TextModel
from kvasir.tokenizer.messages import Conversation, read_messages


async def post_completions(service: Service, exchange: Exchange) -> None:
    request, warnings = await exchange.read_json(
        lambda body: parse_request(
            CompletionRequest, body, completions.UNSUPPORTED, strict=service.options.strict
        )
    )
    model = service.check_model(request.model)
    text, info = await service.open()
    job = await completion_job(request, _server(service, text, info))
    answer = CompletionAnswer(
        new_envelope("cmpl", "text_completion", model, fingerprint(info), warnings),
        job,
        text.tokenizer,
        echoes=await read_echoes(request, job.prompts, text.tokenizer),
        logprobs=request.logprobs is not None,
        silent=completions.scores_only(request),
    )
    await _generate(service, exchange, text, job, answer, request)


async def post_chat_completions(service: Service, exchange: Exchange) -> None:
    def read(body: Json) -> tuple[ChatRequest, tuple[str, ...], Conversation]:
        request, warnings = parse_request(
            ChatRequest, body, chat.UNSUPPORTED, strict=service.options.strict
        )
        return request, warnings, read_messages(request.messages)

    request, warnings, (messages, notes) = await exchange.read_json(read)
    if notes and service.options.strict:
        raise RequestError(notes[0], param="messages", code="unknown_parameter")
    model = service.check_model(request.model)
    text, info = await service.open()
    job = await chat_job(request, messages, _server(service, text, info))
    answer = ChatAnswer(
        new_envelope("chatcmpl", "chat.completion", model, fingerprint(info), warnings + notes),
        job,
        text.tokenizer,
        logprobs=request.logprobs,
    )
    await _generate(service, exchange, text, job, answer, request)


async def _generate(
    service: Service,
    exchange: Exchange,
    text: TextModel,
    job: Job,
    answer: Answer,
    fields: SamplingFields,
) -> None:
    timeout = service.options.request_timeout
    if fields.use_beam_search:
        search = BeamJob(
            job, fields.length_penalty, service.client, text.tokenizer, service.metrics, timeout
        )
        return await respond_beams(search, answer, exchange)
    async with Generation(
        job, service.client, text.tokenizer, exchange, service.metrics, timeout
    ) as generation:
        service.served.add(
            Served(answer.envelope.id, generation.first_id, job.n_choices, service.owner(exchange))
        )
        await respond(generation, answer, exchange, fields)


def _server(service: Service, text: TextModel, info: Ready) -> Server:
    client = service.client
    most = service.options.max_answer_logprobs
    return Server(text, info, client.limits, client.slices, service.draw_seed, most)


def fingerprint(info: Ready) -> str:
    """Equal fingerprints, seeds and requests give equal answers."""
    return f"kvasir-{__version__}-{info.numerics_id}:draws-{DRAWS}"
