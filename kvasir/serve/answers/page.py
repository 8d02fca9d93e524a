"""What the page is told: what may be asked for, how the server does, why an answer took so long."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class PageModel(TypedDict):
    id: str
    max_model_len: int
    sees: bool
    """Whether it reads images."""


class PageField(TypedDict):
    """A number that shapes a draw."""

    name: str
    kind: Literal["float", "int"]
    default: float
    low: float
    high: float
    above_low: bool
    """Whether the lower bound itself is refused."""
    help: str


class PageFacts(TypedDict):
    object: Literal["page"]
    version: str
    models: list[PageModel]
    fields: list[PageField]
    max_n: int
    max_logprobs: int
    max_images: int
    max_body_bytes: int
    block_size: int
    max_num_seqs: int
    drafter: str
    """The method by which tokens are drafted; empty where nobody drafts."""
    scopes: list[str]
    """Of the key that asked."""


class Quantiles(TypedDict):
    """Seconds, as between the buckets of ``/metrics``; null where nothing was measured."""

    count: int
    p50: float | None
    p90: float | None
    p99: float | None


class LatencyWindow(TypedDict):
    seconds: float
    """How long it is: less than was asked for while the server is young."""
    ttft: Quantiles
    itl: Quantiles


class StepShares(TypedDict):
    """Of the last seconds: where the time of the steps went, by the tokens that they computed."""

    seconds: float
    """That the steps were looked at over."""
    steps: int
    busy: float
    """Share of that time inside steps, 0 to 1."""
    decode: float
    prefill: float
    draft: float
    forced: float
    """Seconds of each."""


class OwnBlocks(TypedDict):
    """A running choice of the key that asked."""

    id: str
    tokens: int
    blocks: int


class OtherBlocks(TypedDict):
    """Those of other keys, together."""

    running: int
    tokens: int
    blocks: int


class DashboardKv(TypedDict):
    block_size: int
    blocks: int
    free: int
    cached: int
    used: int
    shared: int
    """Blocks that running choices would need beyond those used, if none were shared."""
    contiguous: int
    """Blocks that each running choice would take if it were given its whole context at once."""
    requests: list[OwnBlocks]
    others: OtherBlocks


class DiskFigures(TypedDict):
    bytes: int
    stored: int
    loaded: int
    dropped: int
    damaged: int
    hit_tokens: int


class DashboardCore(TypedDict):
    """What is the same for all who look."""

    object: Literal["dashboard"]
    at: float
    """Unix time, seconds."""
    model: str
    state: str
    """As ``/ready`` says it."""
    output_rate: float
    """Tokens per second, of the last seconds."""
    prompt_rate: float
    running: int
    waiting: int
    places: int
    """Choices that are computed at a time."""
    expected_wait: float
    """Seconds until a request of now would start."""
    windows: dict[str, LatencyWindow]
    """By their lengths in seconds: 60, 300, 3600."""
    refusals: dict[str, int]
    """Failed and refused requests since the start, by their codes."""
    finished: dict[str, int]
    """Choices that ended, by their reasons."""
    prefix_queries: int
    prefix_hits: int
    drafted: int
    accepted: int
    preemptions: int
    engine_deaths: int
    steps: StepShares
    disk: DiskFigures | None


class Dashboard(DashboardCore):
    kv: DashboardKv


class SharedPrefix(TypedDict):
    """A run of tokens that prompts of the key that asks have in the same place."""

    parent: int
    """Index of the run before it; -1 at the beginning of prompts."""
    start: int
    tokens: int
    prompts: int
    hits: int
    """Of these, those that found all of it computed."""
    age: float
    """Seconds since the newest of them."""
    text: str
    """How it begins."""


class DashboardPrefixes(TypedDict):
    """Parents before their children; of the beginnings of the newest prompts."""

    object: Literal["dashboard.prefixes"]
    prompts: int
    others: int
    """Prompts of other keys, of which no more is said."""
    max_tokens: int
    """Of each prompt that are looked at."""
    prefixes: list[SharedPrefix]


class DashboardHistory(TypedDict):
    """Columns of equal length, oldest first."""

    object: Literal["dashboard.history"]
    seconds: float
    """Between two samples."""
    at: list[float]
    output_rate: list[float]
    prompt_rate: list[float]
    running: list[int]
    waiting: list[int]
    blocks_used: list[int]


class WhyPart(TypedDict):
    cause: str
    at: float
    """Seconds since the request was received, at which the first of it begins."""
    seconds: float


class WhyUndrafted(TypedDict):
    reason: str
    steps: int
    sentence: str


class WhyChoice(TypedDict):
    index: int
    state: str
    seconds: NotRequired[float]
    """Since the server had received it, until its end or now; until all was sent where the
    reader is slow."""
    alone_seconds: NotRequired[float]
    """That it is expected to take on an idle server."""
    cause: NotRequired[str | None]
    """Of most of what is beyond that; null where that is little."""
    sentence: NotRequired[str]
    remedy: NotRequired[str]
    parts: NotRequired[list[WhyPart]]
    undrafted: NotRequired[list[WhyUndrafted]]
    """Once it has ended, where the engine drafts: decode steps in which it had no drafts."""
    is_truncated: NotRequired[bool]


class RequestWhy(TypedDict):
    id: str
    object: Literal["request.why"]
    model: str
    choices: list[WhyChoice]
