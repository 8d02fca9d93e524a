"""Anthropic's Messages."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

import msgspec


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    text: str
    citations: None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class DirectCaller(msgspec.Struct, tag_field="type", tag="direct"):
    """The model itself."""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]
    caller: DirectCaller


class ThinkingDetails(TypedDict):
    thinking_tokens: int


class MessageUsage(TypedDict):
    input_tokens: int
    output_tokens: int
    cache_creation: None
    cache_creation_input_tokens: None
    cache_read_input_tokens: None
    inference_geo: None
    output_tokens_details: ThinkingDetails | None
    server_tool_use: None


class WholeMessageUsage(MessageUsage):
    service_tier: Literal["standard"]


class MessageAnswer(TypedDict):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlock | ThinkingBlock | ToolUseBlock]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    stop_details: None
    container: None
    usage: WholeMessageUsage
    warnings: NotRequired[list[str]]
