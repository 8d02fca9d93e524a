"""Those of llama-server, TGI, KServe, vLLM and SGLang."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class LlamaToken(TypedDict):
    id: int
    token: str
    bytes: list[int]
    logprob: float


class LlamaProbability(LlamaToken):
    top_logprobs: list[LlamaToken]


class Timings(TypedDict):
    """Milliseconds, and tokens for each second."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float | None
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float | None


class LlamaAnswer(TypedDict):
    content: str
    tokens: list[int]
    id_slot: int
    stop: Literal[True]
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, float | None]
    has_new_line: bool
    truncated: bool
    stop_type: Literal["limit", "word", "eos"]
    stopping_word: str
    tokens_cached: int
    timings: Timings
    completion_probabilities: NotRequired[list[LlamaProbability]]
    warnings: NotRequired[list[str]]


class GenerationDefaults(TypedDict):
    n_ctx: int


class Modalities(TypedDict):
    vision: bool
    audio: bool


class Props(TypedDict):
    default_generation_settings: GenerationDefaults
    total_slots: int
    model_alias: str
    chat_template: str
    modalities: Modalities
    bos_token: str | None
    eos_token: str | None
    build_info: str


class LlamaSlot(TypedDict):
    id: int
    n_ctx: int
    is_processing: bool


class RenderedPrompt(TypedDict):
    prompt: str
    warnings: NotRequired[list[str]]


class TgiToken(TypedDict):
    id: int
    text: str
    logprob: float
    special: bool


class TgiPrefill(TypedDict):
    """A token of the prompt; the first has no probability."""

    id: int
    text: str
    logprob: float | None


class TgiDetails(TypedDict):
    finish_reason: Literal["length", "eos_token", "stop_sequence"]
    generated_tokens: int
    input_length: int
    seed: int
    prefill: list[TgiPrefill]
    tokens: list[TgiToken]


class TgiAnswer(TypedDict):
    generated_text: str
    details: NotRequired[TgiDetails]
    warnings: NotRequired[list[str]]


class VertexAnswer(TypedDict):
    predictions: list[str]
    warnings: NotRequired[list[str]]


class TgiInfo(TypedDict):
    model_id: str
    model_sha: str
    model_dtype: str
    model_device_type: str
    max_concurrent_requests: int
    max_best_of: int
    max_stop_sequences: int
    max_input_tokens: int
    max_total_tokens: int
    max_client_batch_size: int
    router: str
    version: str


class KserveAnswer(TypedDict):
    model_name: str
    model_version: str
    id: NotRequired[str]
    text_output: str
    finish_reason: Literal["stop", "length"]
    prompt_tokens: int
    completion_tokens: int
    warnings: NotRequired[list[str]]


class KserveRows(TypedDict):
    name: str
    datatype: Literal["BYTES"]
    shape: list[int]
    data: list[str]


class KserveInferred(TypedDict):
    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[KserveRows]
    warnings: NotRequired[list[str]]


class KserveLive(TypedDict):
    live: bool


class KserveReady(TypedDict):
    ready: bool


class KserveServer(TypedDict):
    name: str
    version: str
    extensions: list[str]


class KserveTensor(TypedDict):
    name: str
    datatype: str
    shape: list[int]


class KserveModel(TypedDict):
    name: str
    versions: list[str]
    platform: str
    inputs: list[KserveTensor]
    outputs: list[KserveTensor]


class KserveModelReady(TypedDict):
    name: str
    ready: bool


class TokenizerInfo(TypedDict):
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_tokens: list[str | None]
    special_tokens: list[str | None]
    chat_template: str | None


class ServerInfo(TypedDict):
    version: str
    model: str
    numerics_id: str
    max_model_len: int
    max_num_seqs: int
    num_blocks: int
    block_size: int
    reasons: dict[str, str]


class ServerLoad(TypedDict):
    server_load: int


class EngineLoad(TypedDict):
    dp_rank: int
    num_running_reqs: int
    num_waiting_reqs: int
    num_total_reqs: int
    num_waiting_tokens: int
    token_usage: float


class EngineLoads(TypedDict):
    version: str
    loads: list[EngineLoad]
