"""Requests to jobs: prompts as ids, parameters resolved, every bound checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kvasir.core.errors import RequestError
from kvasir.core.messages import Ready
from kvasir.core.params import SamplingParams
from kvasir.sampling.names import Names
from kvasir.sampling.standing import Standing
from kvasir.sampling.validate import check, check_prompt, resolve_choices
from kvasir.serve.generation import Job
from kvasir.serve.protocol import chat, completions
from kvasir.serve.protocol.chat import ChatRequest
from kvasir.serve.protocol.completions import CompletionRequest
from kvasir.serve.protocol.sampling import standing_of
from kvasir.serve.text import TextModel
from kvasir.tokenizer.messages import ChatMessage, read_messages

MAX_PROMPTS = 1024
MAX_JOB_TOKENS = 16 * 2**20
"""Prompt ids that one request sends to the engine, each choice counted."""

Ids = tuple[int, ...]
DrawSeed = Callable[[], int]


async def completion_job(
    request: CompletionRequest, text: TextModel, info: Ready, draw: DrawSeed
) -> Job:
    """Each prompt of a request without a seed has one from ``draw``. Raises RequestError (400)."""
    params, standing = completions.sampling_params(request), standing_of(request)
    names = completions.names_of(request)
    _check_before_tokenizing(params, info, names)
    prompts = await _prompts(request, text, info.max_model_len)
    return _job(prompts, params, text, info, draw, standing, names)


async def chat_job(
    request: ChatRequest, text: TextModel, info: Ready, draw: DrawSeed
) -> tuple[Job, tuple[str, ...]]:
    """The job, and warnings about fields of messages. Raises RequestError (400)."""
    params, standing = chat.sampling_params(request), standing_of(request)
    names = chat.names_of(request)
    _check_before_tokenizing(params, info, names)
    messages, warnings = read_messages(request.messages)
    prompt = await chat_prompt(
        messages,
        text,
        info.max_model_len,
        add_generation_prompt=request.add_generation_prompt,
        add_special=request.add_special_tokens,
    )
    return _job((prompt,), params, text, info, draw, standing, names), warnings


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


async def _prompts(request: CompletionRequest, text: TextModel, limit: int) -> tuple[Ids, ...]:
    _check_count(request.prompt, limit)
    prompts = split_prompts(request.prompt)
    if len(prompts) > MAX_PROMPTS:
        raise RequestError(
            f"prompt holds {len(prompts)} prompts, at most {MAX_PROMPTS} are allowed",
            param="prompt",
        )
    ids: list[Ids] = []
    for prompt in prompts:
        if isinstance(prompt, str):
            ids.append(
                await text.encode(
                    prompt, add_special=request.add_special_tokens, limit=limit, param="prompt"
                )
            )
        else:
            ids.append(prompt)
    return tuple(ids)


def _check_count(prompt: str | list[str | int | list[int]], limit: int) -> None:
    """Refuses a list that is too long whatever it holds, before anybody walks through it."""
    if isinstance(prompt, list) and len(prompt) > max(limit, MAX_PROMPTS):
        raise RequestError(
            f"the context holds {limit} tokens and a request {MAX_PROMPTS} prompts, prompt lists "
            f"{len(prompt)}: shorten it",
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


def _job(
    prompts: tuple[Ids, ...],
    params: SamplingParams,
    text: TextModel,
    info: Ready,
    draw: DrawSeed,
    standing: Standing,
    names: Names,
) -> Job:
    for prompt in prompts:
        check_prompt(
            prompt,
            vocab_size=info.vocab_size,
            max_model_len=info.max_model_len,
            name=names.prompt,
        )
    n_tokens = sum(map(len, prompts)) * params.n
    if n_tokens > MAX_JOB_TOKENS:
        raise RequestError(
            f"the prompts hold {n_tokens} tokens over all choices, at most {MAX_JOB_TOKENS} are "
            "allowed: send fewer prompts in one request",
            param=names.prompt,
        )
    resolved = [
        params_of_choice
        for prompt in prompts
        for params_of_choice in resolve_choices(
            params,
            vocab_size=info.vocab_size,
            max_model_len=info.max_model_len,
            n_prompt=len(prompt),
            eos_ids=text.tokenizer.eos_ids,
            draw=draw,
            names=names,
        )
    ]
    return Job(prompts, params, tuple(resolved), standing)
