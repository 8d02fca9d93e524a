"""What the requests for vectors and for scores have in common, and each of them."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.serve.asked import Asked, PoolWish, Prompt, Truncation
from kvasir.serve.protocol.sampling import standing_of
from kvasir.serve.resolved import Json
from kvasir.validation.names import Names
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.standing import check_salt

Texts = str | list[str | int | list[int]]
Unsupported = dict[str, tuple[object, ...]]


class PoolFields(msgspec.Struct, frozen=True, kw_only=True):
    """Names are those of vLLM; ``truncate`` is also that of Ollama, Cohere and TEI."""

    model: str | None = None
    pooling: str | None = None
    """"cls", "mean" or "last"; by default what the model was trained with, else "last"."""
    truncate: bool | str | None = None
    """What of a text that is too long is left out: true or "end", "start"; false or "none" refuses
    it."""
    truncate_prompt_tokens: int | None = None
    """Tokens that are left, the last ones; -1: as many as the context holds."""
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool = True
    cache_salt: str | None = None
    deadline_ms: int | None = None
    user: str | None = None
    safety_identifier: str | None = None
    priority: int | None = None
    priority_class: str | None = None
    service_tier: str | None = None


class EmbeddingRequest(PoolFields, frozen=True, kw_only=True):
    """POST /v1/embeddings and /pooling."""

    input: Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    prompt_name: str | None = None
    """Of what the model was trained to read before each text, as TEI and sentence-transformers call
    it; by default what its folder says."""
    normalize: bool | None = None
    """Whether vectors have the length 1; by default embeddings have, what is pooled has not."""


class RerankRequest(PoolFields, frozen=True, kw_only=True):
    """POST /v1/rerank and its other names."""

    query: str
    documents: list[str | dict[str, Any]]
    top_n: int | None = None
    return_documents: bool = False
    instruction: str | None = None
    method: str = "auto"


class ScoreRequest(PoolFields, frozen=True, kw_only=True):
    """POST /v1/score."""

    text_1: str | list[str]
    text_2: str | list[str]
    instruction: str | None = None
    method: str = "auto"


class ClassifyRequest(PoolFields, frozen=True, kw_only=True):
    """POST /v1/classify."""

    input: Texts


class LlamaEmbeddingRequest(PoolFields, frozen=True, kw_only=True):
    """POST /embedding, as of llama-server."""

    content: Texts
    embd_normalize: int = 2


class OllamaFields(PoolFields, frozen=True, kw_only=True):
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    keep_alive: int | float | str | None = None


class OllamaEmbedRequest(OllamaFields, frozen=True, kw_only=True):
    """POST /api/embed."""

    input: Texts
    dimensions: int | None = None


class OllamaEmbeddingsRequest(OllamaFields, frozen=True, kw_only=True):
    """POST /api/embeddings, the older form."""

    prompt: str


UNSUPPORTED: Unsupported = {
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "messages": (),
    "mm_processor_kwargs": (),
    "max_tokens_per_doc": (),
    "activation": (None,),
    "softmax": (None,),
    "use_activation": (None,),
    "task": ("embed",),
}


def asked_for(
    fields: PoolFields,
    dialect: str,
    prompts: tuple[Prompt, ...],
    name: str,
    warnings: tuple[str, ...],
    show: Json,
    wish: PoolWish,
) -> Asked:
    """``name``: of the field that holds the texts. Raises RequestError (400)."""
    return Asked(
        dialect=dialect,
        params=SamplingParams(max_tokens=1, deadline_ms=fields.deadline_ms),
        prompts=prompts,
        add_special=fields.add_special_tokens,
        model=fields.model,
        names=Names(prompt=name, max_tokens=None),
        salt=check_salt(fields.cache_salt),
        standing=standing_of(fields),
        warnings=warnings,
        show=show,
        pool=replace(wish, pooling=fields.pooling, truncation=_truncation(fields)),
    )


_SIDES = {"end": False, "start": True}


def _truncation(fields: PoolFields) -> Truncation | None:
    """Raises RequestError (400) on fields that contradict each other."""
    limit, word = fields.truncate_prompt_tokens, fields.truncate
    if isinstance(word, str):
        word = word.lower()
        if word not in (*_SIDES, "none"):
            raise RequestError(
                f"truncate {word[:32]!r}: use true, false, start, end or none", param="truncate"
            )
    if limit is not None and (limit == 0 or limit < -1):
        raise RequestError(
            f"truncate_prompt_tokens is {limit}: needs -1 or at least 1",
            param="truncate_prompt_tokens",
        )
    if word in (False, "none") and limit is not None:
        raise RequestError(
            f"truncate {word!r} and truncate_prompt_tokens contradict each other: leave one out",
            param="truncate",
        )
    if word in (None, False, "none") and limit is None:
        if fields.truncation_side is not None:
            raise RequestError(
                "truncation_side needs truncate or truncate_prompt_tokens", param="truncation_side"
            )
        return None
    return Truncation(None if limit in (None, -1) else limit, _keeps_end(fields, word))


def _keeps_end(fields: PoolFields, word: object) -> bool:
    if fields.truncation_side is not None:
        return fields.truncation_side == "left"
    return _SIDES[word] if isinstance(word, str) else fields.truncate_prompt_tokens is not None
