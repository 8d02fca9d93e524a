"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.params import SamplingParams
from kvasir.serve.protocol.sampling import UNSUPPORTED_SAMPLING, SamplingFields, to_params
from kvasir.serve.protocol.warn import bounded, escaped

ROLES = ("system", "developer", "user", "assistant")


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


class ChatMessage(msgspec.Struct, frozen=True):
    """What the template sees."""

    role: str
    content: str


def read_messages(
    messages: Sequence[dict[str, Any]],
) -> tuple[tuple[ChatMessage, ...], tuple[str, ...]]:
    """The conversation, and warnings about fields of messages that are ignored. Raises RequestError
    (400)."""
    if not messages:
        raise RequestError("messages is empty: send at least one", param="messages")
    read = tuple(_message(message, i) for i, message in enumerate(messages))
    fields = {key for message in messages for key in message} - {"role", "content"}
    parts = [part for message in messages for part in _dicts(message["content"])]
    inner = {key for part in parts for key in part} - {"type", "text"}
    extra = {escaped(key) for key in fields} | {f"content[].{escaped(key)}" for key in inner}
    return read, bounded(f"messages[].{key} was ignored" for key in sorted(extra))


def _dicts(content: object) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _message(message: dict[str, Any], i: int) -> ChatMessage:
    where = f"messages[{i}]"
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"{where}.role is {str(role)[:32]!r}: use one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    for key in ("tool_calls", "function_call", "tool_call_id"):
        if message.get(key):
            raise RequestError(f"{where}.{key} is not supported yet", param=f"{where}.{key}")
    return ChatMessage(role, _content(message.get("content"), f"{where}.content"))


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))
    raise RequestError(f"{where} must be text or a list of text parts", param=where)


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if (
        not isinstance(part, dict)
        or part.get("type") != "text"
        or not isinstance(part.get("text"), str)
    ):
        raise RequestError(
            f"{where}: only parts of type text are supported",
            param=where,
            code="unsupported_parameter",
        )
    return str(part["text"])


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


def _max_tokens(request: ChatRequest) -> int | None:
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            f"max_tokens is {old} and max_completion_tokens is {new}: send one of them",
            param="max_tokens",
        )
    return old if new is None else new
