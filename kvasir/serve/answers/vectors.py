"""Vectors and what is made of them."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from kvasir.serve.answers.openai import PromptUsage


class PoolEnvelope(TypedDict):
    """``pooling`` and ``method`` say how the answer came about."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    usage: PromptUsage
    pooling: NotRequired[str]
    method: NotRequired[str]
    warnings: NotRequired[list[str]]


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str
    """As text: base64 of float32, little-endian."""


class Embeddings(PoolEnvelope):
    data: list[Embedding]


class Pooled(TypedDict):
    object: Literal["pooling"]
    index: int
    data: list[float] | str


class PooledList(PoolEnvelope):
    data: list[Pooled]


class LlamaEmbedding(TypedDict):
    index: int
    embedding: list[list[float]]


class Score(TypedDict):
    index: int
    object: Literal["score"]
    score: float


class Scores(PoolEnvelope):
    data: list[Score]


class Classified(TypedDict):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classes(PoolEnvelope):
    data: list[Classified]


class RankedDocument(TypedDict):
    text: str


class Ranked(TypedDict):
    index: int
    relevance_score: float
    document: NotRequired[RankedDocument]


class Ranking(PoolEnvelope):
    results: list[Ranked]


class TeiRanked(TypedDict):
    """Of who sent ``texts``."""

    index: int
    score: float
    text: NotRequired[str]
