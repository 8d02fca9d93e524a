"""What this server alone says: of itself, of tokens, of time, and of what it keeps."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from kvasir.serve.state.batches import StoredBatch
from kvasir.serve.state.files import File
from kvasir.timing.records import Span


class Version(TypedDict):
    version: str


class Controlled(TypedDict):
    id: str
    action: str
    success: Literal[True]


class Closed(TypedDict):
    session_id: str
    closed: Literal[True]


class Routes(TypedDict):
    server: Literal["kvasir"]
    version: str
    routes: dict[str, str]


class StateAnswer(TypedDict):
    status: str


class Check(TypedDict):
    """And what it was found from."""

    ok: bool
    reason: NotRequired[str]
    used: NotRequired[float]
    limit: NotRequired[float]
    model: NotRequired[str]
    waiting: NotRequired[int]
    still_seconds: NotRequired[float]
    probe_seconds: NotRequired[float | None]


class Health(TypedDict):
    status: str
    healthy: bool
    checks: dict[str, Check]


class TokenizedPiece(TypedDict):
    id: int
    piece: str | list[int]


class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int | TokenizedPiece]
    token_strs: list[str | None] | None
    warnings: NotRequired[list[str]]


class Detokenized(TypedDict):
    prompt: str
    warnings: NotRequired[list[str]]


class SpanSummary(TypedDict):
    queued_seconds: float
    prefill_seconds: float
    decode_seconds: float
    chunks: int
    decode_steps: int
    cached_tokens: int
    preemptions: int
    swaps: int


class ChoiceStory(TypedDict):
    """A choice that is forgotten has an index, a state and no spans."""

    index: int
    state: str
    spans: tuple[Span, ...]
    arrived: NotRequired[float]
    prompt_tokens: NotRequired[int]
    summary: NotRequired[SpanSummary]
    is_truncated: NotRequired[bool]


class RequestTimeline(TypedDict):
    id: str
    object: Literal["request.timeline"]
    model: str
    compile_seconds: NotRequired[float]
    """Until its grammar was judged, before the engine had it."""
    choices: list[ChoiceStory]


RowKind = Literal["decode", "prefill", "draft", "forced"]


class StepRow(TypedDict):
    id: str
    kind: RowKind
    tokens: int
    start: NotRequired[int]


class StepAnswer(TypedDict):
    step: int
    at: float
    seconds: float
    rows: int
    tokens: int
    decodes: int
    waiting: int
    blocks_free: int
    requests: list[StepRow]


class StepTimeline(TypedDict):
    object: Literal["timeline"]
    model: str
    steps: list[StepAnswer]


class HeldBlocks(TypedDict):
    id: str
    tokens: int
    blocks: int


class KvCache(TypedDict):
    object: Literal["kv_cache"]
    model: str
    block_size: int
    blocks: int
    blocks_free: int
    blocks_cached: int
    running: int
    requests: list[HeldBlocks]


class ListEnds(TypedDict):
    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class FileList(ListEnds):
    data: list[File]


class BatchList(ListEnds):
    data: list[StoredBatch]


class Deleted(TypedDict):
    id: str
    object: str
    deleted: Literal[True]


class OpenApiDocument(TypedDict):
    openapi: str
    info: dict[str, str]
    paths: dict[str, Any]
    components: dict[str, Any]
