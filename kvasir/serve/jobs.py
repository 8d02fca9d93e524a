"""Requests to jobs: prompts as ids, parameters resolved, every bound checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from msgspec import structs

from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.core.params import SamplingParams, TokenParams
from kvasir.core.request import PLAIN, Context
from kvasir.sampling.names import Names
from kvasir.sampling.validate import check, check_prompt, other_prompt, resolve_params
from kvasir.serve.admission import Limits
from kvasir.serve.answer_size import answer_limit, check_answer
from kvasir.serve.generation import Job
from kvasir.serve.protocol import chat, completions
from kvasir.serve.protocol.chat import ChatRequest
from kvasir.serve.protocol.completions import CompletionRequest
from kvasir.serve.protocol.sampling import SamplingFields, context_of, standing_of
from kvasir.serve.slices import Slices, Work
from kvasir.serve.text import TextModel
from kvasir.tokenizer.messages import ChatMessage

Ids = tuple[int, ...]
DrawSeed = Callable[[], int]


@dataclass(frozen=True, slots=True)
class Server:
    """What requests are read with."""

    text: TextModel
    info: Ready
    limits: Limits
    slices: Slices
    draw: DrawSeed
    """Seeds of requests without one."""
    max_answer_logprobs: int
    """Of one answer, where one full context has fewer."""
    context: Context = PLAIN
    """The model's; a request adds its salt."""


async def completion_job(request: CompletionRequest, server: Server, arrived: float) -> Job:
    """Each prompt of a request without a seed has one of its own. Its time limits count from
    ``arrived``. Raises RequestError (400)."""
    params = completions.sampling_params(request)
    names = completions.names_of(request)
    _check_before_tokenizing(params, server.info, names)
    context, standing = context_of(request, server.context), standing_of(request, arrived)
    prompts = await _prompts(request, params.n, server)
    resolved = await server.slices.run(_resolved(prompts, params, server, names))
    job = Job(prompts, params, resolved, context, standing)
    _check_answer(job, request, server, names, echoes=request.echo)
    return job


async def chat_job(
    request: ChatRequest, messages: Sequence[ChatMessage], server: Server, arrived: float
) -> Job:
    """As ``completion_job``."""
    params = chat.sampling_params(request)
    names = chat.names_of(request)
    _check_before_tokenizing(params, server.info, names)
    context, standing = context_of(request, server.context), standing_of(request, arrived)
    server.limits.check(1, params.n)
    prompt = await chat_prompt(
        messages,
        server.text,
        server.info.max_model_len,
        add_generation_prompt=request.add_generation_prompt,
        add_special=request.add_special_tokens,
    )
    resolved = await server.slices.run(_resolved((prompt,), params, server, names))
    job = Job((prompt,), params, resolved, context, standing)
    _check_answer(job, request, server, names, echoes=False)
    return job


def _check_answer(
    job: Job, request: SamplingFields, server: Server, names: Names, *, echoes: bool
) -> None:
    limit = answer_limit(server.max_answer_logprobs, server.info.max_model_len)
    check_answer(job, limit, echoes=echoes, streams=request.stream, names=names)


async def chat_prompt(
    messages: Sequence[ChatMessage],
    text: TextModel,
    limit: int,
    *,
    add_generation_prompt: bool,
    add_special: bool,
) -> Ids:
    """Ids of the conversation. Raises RequestError (400) without a template or above ``limit``
    tokens."""
    size = sum(len(message.content.encode("utf-8", errors="replace")) for message in messages)
    text.check_bytes(size, limit, "messages")
    said = [{"role": message.role, "content": message.content} for message in messages]
    return await text.render(
        said, add_generation_prompt=add_generation_prompt, add_special=add_special
    )


def _check_before_tokenizing(params: SamplingParams, info: Ready, names: Names) -> None:
    """A request that fails whatever its prompt costs no tokenization."""
    check(
        params,
        vocab_size=info.vocab_size,
        max_model_len=info.max_model_len,
        n_prompt=0,
        names=names,
    )


async def _prompts(request: CompletionRequest, n: int, server: Server) -> tuple[Ids, ...]:
    limits, limit = server.limits, server.info.max_model_len
    _check_count(request.prompt, limit, limits)
    prompts = split_prompts(request.prompt)
    limits.check(len(prompts), n)
    special = request.add_special_tokens
    found = await server.text.read_many(
        prompts, server.slices, add_special=special, limit=limit, param="prompt"
    )
    return tuple(found)


def _check_count(prompt: str | list[str | int | list[int]], limit: int, limits: Limits) -> None:
    """Refuses a list that is too long whatever it holds, before anybody walks through it."""
    if isinstance(prompt, list) and len(prompt) > max(limit, limits.n_choices):
        raise RequestError(
            f"the context holds {limit} tokens and a request {limits.n_choices} prompts, prompt "
            f"lists {len(prompt)}: shorten it",
            param="prompt",
            code="context_length_exceeded",
        )


def split_prompts(prompt: str | list[str | int | list[int]]) -> list[str | Ids]:
    """One text or list of ids for each prompt. Raises RequestError (400)."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("the prompt is empty: it needs at least one token", param="prompt")
    integers = [item for item in prompt if isinstance(item, int)]
    if len(integers) == len(prompt):
        return [tuple(integers)]
    strings = [item for item in prompt if isinstance(item, str)]
    if len(strings) == len(prompt):
        return list(strings)
    lists = [tuple(item) for item in prompt if isinstance(item, list)]
    if len(lists) == len(prompt):
        return list(lists)
    raise RequestError("prompt mixes texts, ids and lists of ids: use one of them", param="prompt")


def _resolved(
    prompts: tuple[Ids, ...], params: SamplingParams, server: Server, names: Names
) -> Work[tuple[TokenParams, ...]]:
    """Checks every prompt; what does not depend on it is resolved once."""
    sizes = {"vocab_size": server.info.vocab_size, "max_model_len": server.info.max_model_len}
    for prompt in prompts:
        check_prompt(prompt, **sizes, name=names.prompt)
        yield
    server.limits.check(len(prompts), params.n, sum(map(len, prompts)))
    draw = server.draw
    first = resolve_params(
        params if params.seed is not None else structs.replace(params, seed=draw()),
        **sizes,
        n_prompt=len(prompts[0]),
        eos_ids=server.text.tokenizer.eos_ids,
        names=names,
    )
    resolved = [first]
    for prompt in prompts[1:]:
        seed, length = first.seed if params.seed is not None else draw(), len(prompt)
        own = other_prompt(
            first,
            params,
            seed=seed,
            n_prompt=length,
            max_model_len=server.info.max_model_len,
            names=names,
        )
        resolved.append(own)
        yield
    return tuple(resolved)
