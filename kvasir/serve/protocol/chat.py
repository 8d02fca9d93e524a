"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.protocol.choices import ChoiceFields, choice_params
from kvasir.serve.protocol.sampling import UNSUPPORTED_SAMPLING
from kvasir.validation.names import Names
from kvasir.validation.sampling import SamplingParams


class ChatRequest(ChoiceFields, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    """The answer goes on with the last message instead of answering it."""
    echo: bool = False
    """The answer begins with the last message, where that is the assistant's."""
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: str | None = None
    include_reasoning: bool = True
    separate_reasoning: bool | None = None
    """SGLang's: false leaves it in the content."""
    reasoning_format: str | None = None
    """llama-server's."""
    reasoning_budget_message: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None
    """What much of the answer is expected to be."""
    store: bool = False
    """It can be fetched, listed and told again."""
    enable_thinking: bool | None = None
    thinking_token_budget: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_control: bool = False
    add_special_tokens: bool = False
    """The template writes the special tokens itself."""


UNSUPPORTED: dict[str, tuple[object, ...]] = {
    **UNSUPPORTED_SAMPLING,
    "functions": ([],),
    "function_call": ("none", "auto"),
    "chat_template": (),
    "documents": ([],),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "verbosity": (),
}


def sampling_params(request: ChatRequest) -> SamplingParams:
    """Raises RequestError (400)."""
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    if request.continue_final_message and request.add_generation_prompt:
        raise RequestError(
            "continue_final_message does not go together with add_generation_prompt: send that as "
            "false",
            param="continue_final_message",
        )
    if request.store and request.return_metrics:
        raise RequestError(
            "return_metrics does not go together with store: an answer that is told again has no "
            "times",
            param="return_metrics",
        )
    return choice_params(
        request,
        max_tokens=_max_tokens(request),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        prompt_logprobs=request.prompt_logprobs,
    )


def names_of(request: ChatRequest) -> Names:
    """What its errors call what was sent."""
    new = request.max_completion_tokens is not None
    old = "max_tokens" if request.max_tokens is not None else None
    return Names(
        prompt="messages",
        max_tokens="max_completion_tokens" if new else old,
        logprobs="top_logprobs",
        scoring="prompt_logprobs",
    )


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}: send one of them",
            param="max_tokens",
        )
    return old if new is None else new
