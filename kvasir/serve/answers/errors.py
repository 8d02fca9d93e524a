"""Errors, as each dialect words them."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class ErrorDetail(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(TypedDict):
    """OpenAI's, and of every route without words of its own."""

    error: ErrorDetail


class MessagesErrorDetail(TypedDict):
    type: str
    message: str
    param: NotRequired[str]
    code: str


class MessagesError(TypedDict):
    """Anthropic's."""

    type: Literal["error"]
    error: MessagesErrorDetail
    request_id: None


class PlainError(TypedDict):
    """Ollama's and KServe's."""

    error: str


class TgiError(TypedDict):
    error: str
    error_type: str


class LlamaErrorDetail(TypedDict):
    code: int
    message: str
    type: str


class LlamaError(TypedDict):
    """llama-server's."""

    error: LlamaErrorDetail
