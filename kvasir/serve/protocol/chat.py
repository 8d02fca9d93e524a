"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

from kvasir.core.errors import RequestError
from kvasir.core.params import SamplingParams
from kvasir.sampling.names import Names
from kvasir.serve.protocol.sampling import UNSUPPORTED_SAMPLING, SamplingFields, to_params


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    """The template writes the special tokens itself."""


UNSUPPORTED: dict[str, tuple[object, ...]] = {
    **UNSUPPORTED_SAMPLING,
    "tools": ([],),
    "functions": ([],),
    "tool_choice": ("none", "auto"),
    "function_call": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "continue_final_message": (False,),
    "echo": (False,),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "reasoning_effort": (),
    "include_reasoning": (True,),
    "thinking_token_budget": (),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "web_search_options": (),
    "verbosity": (),
}


def sampling_params(request: ChatRequest) -> SamplingParams:
    """Raises RequestError (400)."""
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return to_params(
        request,
        max_tokens=_max_tokens(request),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=None,
    )


def names_of(request: ChatRequest) -> Names:
    """What its errors call what was sent."""
    new = request.max_completion_tokens is not None
    old = "max_tokens" if request.max_tokens is not None else None
    return Names(
        prompt="messages",
        max_tokens="max_completion_tokens" if new else old,
        logprobs="top_logprobs",
        scoring=None,
    )


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}: send one of them",
            param="max_tokens",
        )
    return old if new is None else new
