"""Past calls and tools, for templates that leave them out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from kvasir.core.errors import RequestError
from kvasir.tokenizer.messages import ChatMessage
from kvasir.toolcalls.detect import Detected
from kvasir.toolcalls.format import ToolFormat
from kvasir.toolcalls.writing import written

_INSTRUCTIONS = ("system", "developer")


def told(
    messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], found: Detected
) -> list[ChatMessage]:
    """``messages`` as the model's template can write them. ``tools``: those of the request. Raises
    RequestError (400) for past calls that are too deep to be written."""
    form, history = found.format, found.history
    if form is None:
        return list(messages)
    if history.is_written:
        messages = [_with_calls(message, form) for message in messages]
    if tools and history.shown_as is None:
        return _with_tools(messages, tools, form)
    return list(messages)


def _with_calls(message: ChatMessage, form: ToolFormat) -> ChatMessage:
    if not message.calls:
        return message
    try:
        turn = written(form, [(call.name, call.arguments) for call in message.calls], "\n")
    except RecursionError:
        raise RequestError(
            "arguments of past calls are nested too deeply", param="messages"
        ) from None
    content = f"{message.content}\n{turn}" if message.content else turn
    return msgspec.structs.replace(message, content=content, calls=())


def _with_tools(
    messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], form: ToolFormat
) -> list[ChatMessage]:
    """What models are taught that read tools as text: each as JSON, and what a call looks like."""
    example = written(form, [("name_of_function", {"name_of_parameter": "value"})], "\n")
    lines = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    said = (
        f"You may call these functions, which are described as JSON:\n{lines}\n"
        f"To call one, write:\n{example}"
    )
    if messages and messages[0].role in _INSTRUCTIONS:
        first = msgspec.structs.replace(messages[0], content=f"{messages[0].content}\n\n{said}")
        return [first, *messages[1:]]
    return [ChatMessage("system", said), *messages]
