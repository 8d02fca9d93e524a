"""Vectors of prompts, and what they are compared for, in one engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenEvent
from kvasir.core.params import TokenParams
from kvasir.core.request import NO_DRAWS, EngineRequest, PoolKind
from kvasir.engine.engine import Engine
from kvasir.offline.prompts import Prompt
from kvasir.text.choice import failure_of
from kvasir.text.judge import question
from kvasir.tokenizer.chat import ChatTemplate
from kvasir.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    embedding: list[float]


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """As in vLLM."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(frozen=True, slots=True)
class PoolingOutput:
    data: NDArray[np.float32]
    """f32 [size]."""


@dataclass(frozen=True, slots=True)
class PoolingRequestOutput:
    """As in vLLM."""

    request_id: str
    outputs: PoolingOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(frozen=True, slots=True)
class ClassificationOutput:
    probs: list[float]


@dataclass(frozen=True, slots=True)
class ClassificationRequestOutput:
    """As in vLLM."""

    request_id: str
    outputs: ClassificationOutput
    prompt_token_ids: list[int]
    finished: bool = True


@dataclass(frozen=True, slots=True)
class ScoringOutput:
    score: float
    method: str
    """How the texts were compared."""


@dataclass(frozen=True, slots=True)
class ScoringRequestOutput:
    """As in vLLM, for one pair."""

    request_id: str
    outputs: ScoringOutput
    prompt_token_ids: list[int]
    """Of the text on the second side, or of what a judge was asked."""
    finished: bool = True


def last_events(
    engine: Engine,
    ids: Iterator[int],
    prompts: Sequence[Prompt],
    params: TokenParams = NO_DRAWS,
    pooling: PoolKind | None = None,
    check: Callable[[], None] = lambda: None,
) -> list[TokenEvent]:
    """What each prompt ends with, in the order of the prompts. Raises KvasirError for one that
    fails, and what ``check`` raises, which is called before each step."""
    numbers = [next(ids) for _ in prompts]
    found: dict[int, TokenEvent] = {}
    try:
        for number, prompt in zip(numbers, prompts, strict=True):
            engine.add(
                EngineRequest(
                    number,
                    prompt.ids,
                    params,
                    prompt.context,
                    pooling=pooling,
                    second=prompt.second,
                )
            )
        while len(found) < len(numbers):
            check()
            if not engine.has_work:
                raise KvasirError(f"the engine forgot {len(numbers) - len(found)} prompts")
            for event in engine.step().events:
                if event.finish in ("error", "cancelled"):
                    raise failure_of(event)
                if event.finish is not None:
                    found[event.id] = event
    finally:
        if engine.is_sound:
            _abandon(engine, numbers)
    return [found[number] for number in numbers]


def judged(query: Prompt, document: Prompt, template: ChatTemplate, tokenizer: Tokenizer) -> Prompt:
    """The question whether ``document`` answers ``query``; without a template both as the tokenizer
    joins them, or on two lines. Raises RequestError where one of them is ids."""
    if query.text is None or document.text is None:
        raise RequestError("a judge reads texts: give no ids, or use method cosine")
    if template.problem is not None and tokenizer.joins_pairs:
        both = (tokenizer.encode(x, add_special=False) for x in (query.text, document.text))
        ids, second = tokenizer.pair(*both)
        return Prompt(tuple(ids), None, query.context, second=second)
    if template.problem is not None:
        pair = f"{query.text}\n{document.text}"
        return Prompt(tuple(tokenizer.encode(pair)), None, query.context)
    ids = template.encode(question(query.text, document.text, None), add_generation_prompt=True)
    return Prompt(tuple(ids), None, query.context)


def _abandon(engine: Engine, numbers: Sequence[int]) -> None:
    """Ends what is open and lets the engine come to rest."""
    for number in numbers:
        engine.cancel(number)
    while engine.has_work:
        engine.step()
