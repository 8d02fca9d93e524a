"""Events of OpenAI's Responses."""

from __future__ import annotations

from typing import Any

import msgspec

from kvasir.serve.answers.openai import TokenEntry
from kvasir.serve.answers.responses import (
    FunctionCallItem,
    OutputMessage,
    ReasoningItem,
    Response,
)

Item = OutputMessage | ReasoningItem | FunctionCallItem


class TextPart(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[TokenEntry]


class ReasoningPart(msgspec.Struct, tag_field="type", tag="reasoning_text"):
    text: str


Part = TextPart | ReasoningPart


class ResponseEvent(msgspec.Struct, tag_field="type"):
    """They count from 0."""

    sequence_number: int


class StateEvent(ResponseEvent):
    """The response as it is then."""

    response: Response


class Created(StateEvent, tag="response.created"):
    pass


class InProgress(StateEvent, tag="response.in_progress"):
    pass


class Completed(StateEvent, tag="response.completed"):
    pass


class Cut(StateEvent, tag="response.incomplete"):
    pass


class Failed(StateEvent, tag="response.failed"):
    pass


class ItemEvent(ResponseEvent):
    output_index: int
    item: Item


class ItemAdded(ItemEvent, tag="response.output_item.added"):
    pass


class ItemDone(ItemEvent, tag="response.output_item.done"):
    pass


class PlacedEvent(ResponseEvent):
    """Of an item."""

    item_id: str
    output_index: int


class ContentEvent(PlacedEvent):
    """Of a part of an item."""

    content_index: int


class PartAdded(ContentEvent, tag="response.content_part.added"):
    part: Part


class PartDone(ContentEvent, tag="response.content_part.done"):
    part: Part


class OutputTextDelta(ContentEvent, tag="response.output_text.delta"):
    delta: str
    logprobs: list[TokenEntry]


class OutputTextDone(ContentEvent, tag="response.output_text.done"):
    text: str
    logprobs: list[TokenEntry]


class ReasoningTextDelta(ContentEvent, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningTextDone(ContentEvent, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(PlacedEvent, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(PlacedEvent, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


RESPONSE_EVENTS = (
    Created,
    InProgress,
    ItemAdded,
    PartAdded,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ArgumentsDelta,
    ArgumentsDone,
    PartDone,
    ItemDone,
    Completed,
    Cut,
    Failed,
)
