"""The one validator of conversations, whoever brings them: the server or a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.warn import bounded, escaped

ROLES = ("system", "developer", "user", "assistant")
_CALLS = ("tool_calls", "function_call", "tool_call_id")


class ChatMessage(msgspec.Struct, frozen=True):
    """What the template sees."""

    role: str
    content: str


Conversation = tuple[tuple[ChatMessage, ...], tuple[str, ...]]
"""Messages, and warnings about them."""


def read_messages(messages: object) -> Conversation:
    """The conversation, and warnings about fields of messages that are ignored. Raises RequestError
    (400)."""
    if not is_list(messages):
        raise RequestError("messages must be a list of messages", param="messages")
    if not messages:
        raise RequestError("messages is empty: send at least one", param="messages")
    read = tuple(_message(message, i) for i, message in enumerate(messages))
    fields = {str(key) for message in messages for key in message} - {"role", "content"}
    parts = [part for message in messages for part in _dicts(message["content"])]
    inner = {str(key) for part in parts for key in part} - {"type", "text"}
    extra = sorted({*fields, *(f"content[].{key}" for key in inner)})
    return read, bounded(extra, lambda key: f"messages[].{escaped(key)} was ignored")


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """A text is none."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _dicts(content: object) -> list[Mapping[str, Any]]:
    return [part for part in content if isinstance(part, Mapping)] if is_list(content) else []


def _message(message: object, i: int) -> ChatMessage:
    where = f"messages[{i}]"
    if not isinstance(message, Mapping):
        raise RequestError(f"{where} must have a role and a content", param=where)
    role = message.get("role")
    if role not in ROLES:
        raise RequestError(
            f"{where}.role is {_said(role)}: use one of {', '.join(ROLES)}",
            param=f"{where}.role",
        )
    for key in _CALLS:
        if message.get(key):
            raise RequestError(f"{where}.{key} is not supported yet", param=f"{where}.{key}")
    return ChatMessage(role, _content(message.get("content"), f"{where}.content"))


def _said(role: object) -> str:
    return repr(role[:32]) if isinstance(role, str) else f"of type {type(role).__name__}"


def _content(content: object, where: str) -> str:
    if isinstance(content, str):
        return content
    if is_list(content) and content:
        return "\n".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))
    raise RequestError(f"{where} must be text or a list of text parts", param=where)


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestError(
            f"{where}: only parts of type text are supported",
            param=where,
            code="unsupported_parameter",
        )
    return text
