"""OpenAI's Responses."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from kvasir.serve.answers.openai import TokenEntry

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class InputTokensDetails(TypedDict):
    cached_tokens: int


class OutputTokensDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class OutputText(TypedDict):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[TokenEntry]


class OutputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: Status
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: Status
    summary: list[Any]
    content: list[ReasoningText]


class FunctionCallItem(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: Status
    call_id: str
    name: str
    arguments: str


class ResponseFailure(TypedDict):
    code: str
    message: str


class Incomplete(TypedDict):
    reason: Literal["max_output_tokens"]


class AnswerText(TypedDict):
    format: dict[str, Any]
    verbosity: NotRequired[Literal["medium"]]


class ShownReasoning(TypedDict):
    effort: str | None
    summary: str | None


class ConversationRef(TypedDict):
    id: str


class Response(TypedDict):
    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Status
    error: ResponseFailure | None
    incomplete_details: Incomplete | None
    model: str
    system_fingerprint: str
    output: list[OutputMessage | ReasoningItem | FunctionCallItem]
    usage: ResponseUsage | None
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    text: AnswerText
    truncation: Literal["auto", "disabled"]
    tools: list[Any]
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    max_tool_calls: int | None
    reasoning: ShownReasoning | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    top_logprobs: int
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    service_tier: str
    store: bool
    background: bool
    previous_response_id: str | None
    conversation: ConversationRef | None
    warnings: NotRequired[list[str]]


class InputText(msgspec.Struct, tag_field="type", tag="input_text"):
    text: str


class SaidText(msgspec.Struct, tag_field="type", tag="output_text"):
    text: str
    annotations: list[Any]
    logprobs: list[TokenEntry] | msgspec.UnsetType = msgspec.UNSET


class InputImage(msgspec.Struct, tag_field="type", tag="input_image"):
    image_url: str
    detail: Literal["auto"]


ItemStatus = Literal["completed", "incomplete"]


class InputMessage(msgspec.Struct, tag_field="type", tag="message"):
    id: str
    status: ItemStatus
    role: str
    content: list[InputText | SaidText | InputImage]


class InputReasoning(msgspec.Struct, tag_field="type", tag="reasoning"):
    id: str
    status: ItemStatus
    summary: list[Any]
    content: list[ReasoningText]


class InputCall(msgspec.Struct, tag_field="type", tag="function_call"):
    id: str
    status: ItemStatus
    call_id: str
    name: str
    arguments: str


class InputCallOutput(msgspec.Struct, tag_field="type", tag="function_call_output"):
    id: str
    status: ItemStatus
    call_id: str
    output: str


class ItemList(TypedDict):
    object: Literal["list"]
    data: list[InputMessage | InputReasoning | InputCall | InputCallOutput]
    first_id: str | None
    last_id: str | None
    has_more: bool


ITEMS = (InputMessage, InputReasoning, InputCall, InputCallOutput)
"""Of an answer that is one of them."""
