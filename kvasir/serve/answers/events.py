"""Events of streams: what the JSON of one of them may be, in each dialect. Errors that end a stream
are those of ``errors``."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

import msgspec

from kvasir.serve.answers.messages import MessageAnswer, MessageUsage, ToolUseBlock
from kvasir.serve.answers.ollama import OllamaLogprob, OllamaMessage
from kvasir.serve.answers.openai import (
    AnswerTimes,
    ChatFinish,
    ChatLogprobsAnswer,
    CompletionLogprobsAnswer,
    TextFinish,
    TokenUsage,
)
from kvasir.serve.answers.peers import LlamaProbability, TgiToken


class FunctionDelta(TypedDict):
    name: NotRequired[str]
    arguments: str


class CallDelta(TypedDict):
    """Of a call: first its id and name, then its arguments."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict):
    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallDelta]]


class ChatChunkChoice(TypedDict):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobsAnswer | None
    finish_reason: ChatFinish | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]


class CompletionChunkChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobsAnswer | None
    finish_reason: TextFinish | None
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]


class Chunk(TypedDict):
    """Around the choices; the first has the notes, the last the usage and the times."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: NotRequired[TokenUsage | None]
    metadata: NotRequired[dict[str, str]]
    request_id: NotRequired[str]
    warnings: NotRequired[list[str]]
    metrics: NotRequired[AnswerTimes]


class ChatChunk(Chunk):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]
    prompt_token_ids: NotRequired[list[int]]


class CompletionChunk(Chunk):
    object: Literal["text_completion"]
    choices: list[CompletionChunkChoice]


class StartedText(msgspec.Struct, tag_field="type", tag="text"):
    text: str


class StartedThinking(msgspec.Struct, tag_field="type", tag="thinking"):
    thinking: str
    signature: str


class TextDelta(msgspec.Struct, tag_field="type", tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag_field="type", tag="thinking_delta"):
    thinking: str


class InputJsonDelta(msgspec.Struct, tag_field="type", tag="input_json_delta"):
    partial_json: str


class MessageStop(TypedDict):
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"] | None
    stop_sequence: str | None
    stop_details: None
    container: None


class MessageStart(msgspec.Struct, tag_field="type", tag="message_start"):
    message: MessageAnswer


class BlockStart(msgspec.Struct, tag_field="type", tag="content_block_start"):
    index: int
    content_block: StartedText | StartedThinking | ToolUseBlock


class BlockDelta(msgspec.Struct, tag_field="type", tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta


class BlockStop(msgspec.Struct, tag_field="type", tag="content_block_stop"):
    index: int


class MessageDelta(msgspec.Struct, tag_field="type", tag="message_delta"):
    delta: MessageStop
    usage: MessageUsage


class MessageEnd(msgspec.Struct, tag_field="type", tag="message_stop"):
    pass


class Ping(msgspec.Struct, tag_field="type", tag="ping"):
    """In silence."""


MESSAGE_EVENTS = (
    MessageStart,
    BlockStart,
    BlockDelta,
    BlockStop,
    MessageDelta,
    MessageEnd,
    Ping,
)


class OllamaPiece(TypedDict):
    model: str
    created_at: str
    done: Literal[False]
    logprobs: NotRequired[list[OllamaLogprob]]


class GeneratePiece(OllamaPiece):
    response: str


class ChatPiece(OllamaPiece):
    message: OllamaMessage


class LlamaPiece(TypedDict):
    content: str
    tokens: list[int]
    stop: Literal[False]
    id_slot: int
    tokens_predicted: int
    tokens_evaluated: int
    completion_probabilities: NotRequired[list[LlamaProbability]]


class TgiEnd(TypedDict):
    finish_reason: Literal["length", "eos_token", "stop_sequence"]
    generated_tokens: int
    input_length: int
    seed: int


class TgiEvent(TypedDict):
    """One for each token; the last has the whole text."""

    index: int
    token: TgiToken
    top_tokens: list[TgiToken]
    generated_text: str | None
    details: TgiEnd | None
    warnings: NotRequired[list[str]]


class KservePiece(TypedDict):
    model_name: str
    model_version: str
    id: NotRequired[str]
    text_output: str
