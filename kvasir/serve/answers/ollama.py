"""Ollama's."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict


class OllamaFunction(TypedDict):
    name: str
    arguments: Any


class OllamaCall(TypedDict):
    id: str
    function: OllamaFunction


class OllamaMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    thinking: NotRequired[str]
    tool_calls: NotRequired[list[OllamaCall]]


class OllamaToken(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class OllamaLogprob(OllamaToken):
    top_logprobs: NotRequired[list[OllamaToken]]


class OllamaEnd(TypedDict):
    """Durations are nanoseconds."""

    model: str
    created_at: str
    done: Literal[True]
    done_reason: Literal["stop", "length"]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    prompt_eval_duration: int
    eval_count: int
    eval_duration: int
    logprobs: NotRequired[list[OllamaLogprob]]
    warnings: NotRequired[list[str]]


class GenerateAnswer(OllamaEnd):
    response: str
    thinking: NotRequired[str]
    context: list[int]


class ChatEnd(OllamaEnd):
    message: OllamaMessage


class LoadAnswer(TypedDict):
    """Of an empty prompt."""

    model: str
    created_at: str
    response: NotRequired[str]
    message: NotRequired[OllamaMessage]
    done: Literal[True]
    done_reason: Literal["load", "unload"]
    warnings: NotRequired[tuple[str, ...]]


class EmbedAnswer(TypedDict):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    warnings: NotRequired[list[str]]


class EmbeddingsAnswer(TypedDict):
    """The older form."""

    embedding: list[float]
    warnings: NotRequired[list[str]]


class ModelDetails(TypedDict):
    parent_model: Literal[""]
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaCard(TypedDict):
    name: str
    model: str
    size: int
    digest: str
    details: ModelDetails


class Tag(OllamaCard):
    modified_at: str


class Tags(TypedDict):
    models: list[Tag]


class LoadedCard(OllamaCard):
    expires_at: str
    size_vram: int
    context_length: int


class Loaded(TypedDict):
    models: list[LoadedCard]


class Shown(TypedDict):
    modelfile: str
    parameters: str
    template: str
    details: ModelDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str
    warnings: NotRequired[list[str]]
