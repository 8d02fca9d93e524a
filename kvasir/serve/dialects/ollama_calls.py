"""Ollama's words for structures, tools and reasoning."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from kvasir.core.errors import RequestError
from kvasir.serve.protocol.thinking import EFFORT, EFFORTS, SWITCH
from kvasir.serve.resolved import Json
from kvasir.tokenizer.messages import IMAGE_KIND, is_list
from kvasir.toolcalls.pieces import Message
from kvasir.validation.sampling import StructuredOutputs

IMAGES = "images"
RENAMED = {"tool_name": "name", "thinking": "reasoning"}
"""Fields of messages."""


def structure_of(form: str | Json | None) -> StructuredOutputs | None:
    """Of ``format``: "json", or a schema. Raises RequestError (400)."""
    if form is None or form == "":
        return None
    if form == "json":
        return StructuredOutputs(json_object=True)
    if isinstance(form, str):
        raise RequestError('format must be "json" or a JSON Schema', param="format")
    return StructuredOutputs(json=form)


def thinking_of(think: bool | str | None) -> Json:
    """Variables of the template. Raises RequestError (400)."""
    if not isinstance(think, str):
        return {} if think is None else {SWITCH: think}
    if think not in EFFORTS:
        raise RequestError(f"think must be true, false or {', '.join(EFFORTS)}", param="think")
    return {EFFORT: think}


def plain_messages(messages: Sequence[Json]) -> list[Json]:
    """With the names that others have for their fields, and images before the text. Raises
    RequestError (400)."""
    return [_plain(said, f"messages[{i}].images") for i, said in enumerate(messages)]


def _plain(said: Json, where: str) -> Json:
    plain = {RENAMED.get(key, key): value for key, value in said.items() if key != IMAGES}
    images = said.get(IMAGES)
    if not images:
        return plain
    if not is_list(images) or not all(isinstance(image, str) for image in images):
        raise RequestError(f"{where} must be a list of base64 texts", param=where)
    if said.get("role") != "user":
        raise RequestError(f"{where} belong to messages of a user", param=where)
    found: list[Json] = [
        {"type": IMAGE_KIND, IMAGE_KIND: f"data:image/any;base64,{image}"} for image in images
    ]
    text = [{"type": "text", "text": said["content"]}] if said.get("content") else []
    return {**plain, "content": [*found, *text]}


def calls_of(message: Message) -> list[Json]:
    """Arguments that were cut are an empty object."""
    return [
        {"id": call.id, "function": {"name": call.name, "arguments": _loaded(call.arguments)}}
        for call in message.calls
    ]


def _loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return {}
