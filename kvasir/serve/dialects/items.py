"""Items of OpenAI's Responses as messages, and messages as items."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import structs

from kvasir.core.errors import RequestError
from kvasir.tokenizer.messages import (
    TURNS,
    ChatMessage,
    Conversation,
    ImagePart,
    PastCall,
    read_arguments,
    read_content,
    read_parts,
    seeing,
)
from kvasir.validation.warn import bounded, escaped

LOGPROBS = "message.output_text.logprobs"
"""What of items is told where it is asked for."""
ALWAYS_TOLD = ("message.input_image.image_url",)
"""What may be asked for, and need not be."""
PARTS = ("input_text", "output_text", "text")
THOUGHTS = ("reasoning_text", "text")
KNOWN = {"type", "role", "content", "id", "status"}
"""Of an item; what a response gave back may be sent again as it was."""
KNOWN_OF = {
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
    "reasoning": {"summary", "encrypted_content"},
}
KNOWN_OF_PARTS = {"type", "text", "annotations", "logprobs", "image_url"}
IMAGE = "input_image"
"""The type of a part that is an image."""


def read_items(
    given: str | list[dict[str, Any]], instructions: str | None, name: str = "input"
) -> Conversation:
    """The conversation of the field ``name``, and warnings about fields that are ignored. Raises
    RequestError (400)."""
    first = () if instructions is None else (ChatMessage("system", instructions),)
    if isinstance(given, str):
        return (*first, ChatMessage("user", given)), ()
    if not given:
        raise RequestError(f"{name} is empty: send a text or at least one item", param=name)
    said = joined(_message(item, f"{name}[{i}]") for i, item in enumerate(given))
    return (*first, *said), _warnings(given, name)


def answered(output: Sequence[Mapping[str, Any]], name: str = "output") -> tuple[ChatMessage, ...]:
    """What a response's ``output`` says, for the next to go on with; ``name`` is that of its
    field."""
    said = joined(_message(item, f"{name}[{i}]", is_cut=True) for i, item in enumerate(output))
    return said or (ChatMessage("assistant", ""),)


def joined(messages: Iterable[ChatMessage]) -> tuple[ChatMessage, ...]:
    """``messages`` of one item each; reasoning, a text and calls that follow each other are one
    turn of the assistant."""
    found: list[ChatMessage] = []
    is_open = False
    for message in messages:
        is_turn = message.role == "assistant"
        if is_open and is_turn and _goes_on(found[-1], message):
            found[-1] = _with(found[-1], message)
        else:
            found.append(message)
        is_open = is_turn
    return tuple(found)


def _goes_on(turn: ChatMessage, message: ChatMessage) -> bool:
    """Whether ``message`` belongs to ``turn``: calls to all, a text to reasoning alone."""
    if message.calls:
        return True
    return not turn.calls and not turn.content and not message.reasoning


def _with(turn: ChatMessage, message: ChatMessage) -> ChatMessage:
    content, calls = turn.content + message.content, (*turn.calls, *message.calls)
    return structs.replace(turn, content=content, calls=calls)


def _message(item: object, where: str, *, is_cut: bool = False) -> ChatMessage:
    """``is_cut``: arguments that are no JSON are those that the answer's end cut."""
    if not isinstance(item, Mapping):
        raise RequestError(f"{where} must be an item with a role and a content", param=where)
    kind = item.get("type", "message")
    if kind == "function_call":
        return ChatMessage("assistant", "", calls=(_call(item, where, is_cut),))
    if kind == "function_call_output":
        return _result(item, where)
    if kind == "reasoning":
        content = item.get("content") or ""
        said = read_content(content, f"{where}.content", THOUGHTS)
        return ChatMessage("assistant", "", reasoning=said)
    if kind != "message":
        raise RequestError(
            f"{where} is of type {escaped(str(kind))!r}, which is not supported yet: send "
            "messages, reasoning, function_call and function_call_output",
            param=f"{where}.type",
            code="unsupported_parameter",
        )
    role = item.get("role")
    if role not in TURNS:
        raise RequestError(f"{where}.role must be one of {', '.join(TURNS)}", param=f"{where}.role")
    content, name = item.get("content"), f"{where}.content"
    parts = read_parts(content, name, PARTS, IMAGE) if role == "user" else ()
    return seeing(parts) if parts else ChatMessage(role, read_content(content, name, PARTS))


def _call(item: Mapping[str, Any], where: str, is_cut: bool) -> PastCall:
    name, call_id = _text(item, "name", where), _text(item, "call_id", where)
    try:
        given = read_arguments(item.get("arguments"), f"{where}.arguments")
    except RequestError:
        if not is_cut:
            raise
        given = {}
    return PastCall(call_id, name, given)


def _result(item: Mapping[str, Any], where: str) -> ChatMessage:
    said = item.get("output")
    content = "" if said in ("", []) else read_content(said, f"{where}.output", PARTS)
    return ChatMessage("tool", content, call_id=_text(item, "call_id", where))


def _text(item: Mapping[str, Any], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str) or not value:
        raise RequestError(f"{where}.{key} must be text", param=f"{where}.{key}")
    return value


def _warnings(items: Sequence[Mapping[str, Any]], name: str) -> tuple[str, ...]:
    extra = {
        str(key)
        for item in items
        for key in item.keys() - KNOWN - KNOWN_OF.get(str(item.get("type")), set())
    }
    contents = [item.get(key) for item in items for key in ("content", "output")]
    lists = [content for content in contents if isinstance(content, list)]
    parts = [part for content in lists for part in content if isinstance(part, Mapping)]
    inner = {str(key) for part in parts for key in part if not _is_idle(part, key)} - KNOWN_OF_PARTS
    names = sorted({*extra, *(f"content[].{key}" for key in inner)})
    return bounded(names, lambda key: f"{name}[].{escaped(key)} was ignored")


def _is_idle(part: Mapping[str, Any], key: str) -> bool:
    """Whether a field of an image asks for what is done anyway."""
    return part.get("type") == IMAGE and key == "detail" and part[key] in (None, "auto")


def shown_items(messages: Sequence[ChatMessage], suffix: str) -> list[dict[str, Any]]:
    """``messages`` as items, whose ids end with ``suffix`` and their place."""
    found = [item for message in messages for item in _shown(message)]
    return [
        {"id": f"{_PREFIXES[item['type']]}{suffix}_{i}", **item, "status": "completed"}
        for i, item in enumerate(found)
    ]


_PREFIXES = {
    "message": "msg_",
    "reasoning": "rs_",
    "function_call": "fc_",
    "function_call_output": "fco_",
}


def _shown(message: ChatMessage) -> list[dict[str, Any]]:
    if message.role == "tool":
        own = {"call_id": message.call_id, "output": message.content}
        return [{"type": "function_call_output", **own}]
    found: list[dict[str, Any]] = []
    if message.reasoning:
        part = {"type": "reasoning_text", "text": message.reasoning}
        found.append({"type": "reasoning", "summary": [], "content": [part]})
    if message.content or message.parts or not (message.calls or message.reasoning):
        kind = "output_text" if message.role == "assistant" else "input_text"
        more: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
        content = [
            {"type": kind, "text": part, **more} if isinstance(part, str) else _shown_image(part)
            for part in message.parts or (message.content,)
        ]
        found.append({"type": "message", "role": message.role, "content": content})
    for call in message.calls:
        said = json.dumps(call.arguments, ensure_ascii=False)
        own = {"call_id": call.id, "name": call.name, "arguments": said}
        found.append({"type": "function_call", **own})
    return found


def _shown_image(image: ImagePart) -> dict[str, Any]:
    return {"type": IMAGE, "image_url": image.uri, "detail": "auto"}
