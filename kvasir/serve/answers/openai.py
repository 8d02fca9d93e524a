"""OpenAI's answers made of choices, and what vLLM adds to them."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

ChatFinish = Literal["stop", "length", "tool_calls"]
TextFinish = Literal["stop", "length"]


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class PromptUsage(TypedDict):
    """Of answers without tokens of their own."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class CompletionDetails(TypedDict):
    reasoning_tokens: NotRequired[int]
    """Where the model's reasoning is known as such."""
    accepted_prediction_tokens: NotRequired[int]
    """Of a request with a prediction, from which tokens can be drafted: those of it that were, and
    are the answer's."""
    rejected_prediction_tokens: NotRequired[int]
    """Those that were drafted in vain; no tokens of the answer."""


class TokenUsage(PromptUsage):
    completion_tokens: int
    completion_tokens_details: NotRequired[CompletionDetails]


class AnswerTimes(TypedDict):
    """Milliseconds; ``tokens_per_second`` since the start."""

    queue_time_ms: float
    prefill_time_ms: float
    time_to_first_token_ms: float
    generation_time_ms: float
    e2e_time_ms: float
    mean_itl_ms: float | None
    tokens_per_second: float | None


class RankedLogprob(TypedDict):
    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, RankedLogprob] | None]
"""By token ids; the first token has none."""


class TokenAlternative(TypedDict):
    token: str
    logprob: float
    bytes: list[int]


class TokenEntry(TokenAlternative):
    top_logprobs: list[TokenAlternative]


class ChatLogprobsAnswer(TypedDict):
    content: list[TokenEntry]
    refusal: None


class CalledFunction(TypedDict):
    name: str
    arguments: str


class CallAnswer(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatAnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    reasoning: NotRequired[str]
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[CallAnswer]]


class ChatChoice(TypedDict):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobsAnswer | None
    finish_reason: ChatFinish
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]


class ChoiceEnvelope(TypedDict):
    """Around the choices; notes of the client are told again."""

    id: str
    created: int
    model: str
    system_fingerprint: str
    usage: TokenUsage
    metadata: NotRequired[dict[str, str]]
    request_id: NotRequired[str]
    warnings: NotRequired[list[str]]
    metrics: NotRequired[AnswerTimes]


class ChatAnswer(ChoiceEnvelope):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class CompletionLogprobsAnswer(TypedDict):
    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    index: int
    text: str
    logprobs: CompletionLogprobsAnswer | None
    finish_reason: TextFinish
    stop_reason: int | str | None
    token_ids: NotRequired[list[int]]
    prompt_token_ids: NotRequired[list[int]]
    prompt_logprobs: NotRequired[PromptLogprobs]


class CompletionAnswer(ChoiceEnvelope):
    object: Literal["text_completion"]
    choices: list[CompletionChoice]


class ModelCard(TypedDict):
    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["kvasir"]
    root: str
    parent: None
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int
    warnings: NotRequired[list[str]]


class Rendered(TypedDict):
    object: Literal["render"]
    prompt_token_ids: list[list[int]]
    prompts: list[str]
    max_model_len: int
    warnings: NotRequired[list[str]]
