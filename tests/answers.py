"""What came of a request, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvasir.core.messages import TokenEvent, TokenLogprob


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything a client can see of one choice, and the hashes of the logits behind it."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    hashes: tuple[int, ...]
    """0: the logits were not computed, or no executor hashes them."""
    finish: str | None
    stop_id: int | None
    error_code: str | None
    vector: bytes = b""


def answer_of(events: Sequence[TokenEvent]) -> Answer:
    return Answer(
        tokens=tuple(token for event in events for token in event.tokens),
        logprobs=tuple(item for event in events for item in event.logprobs),
        prompt_logprobs=tuple(item for event in events for item in event.prompt_logprobs),
        hashes=tuple(item for event in events for item in _hashes(event)),
        finish=events[-1].finish,
        stop_id=events[-1].stop_id,
        error_code=events[-1].error_code,
        vector=b"".join(event.vector for event in events),
    )


def _hashes(event: TokenEvent) -> tuple[int, ...]:
    return event.logits_hashes or (0,) * len(event.tokens)


def with_hashes(answer: Answer, known: Answer | None) -> Answer:
    """With the known hashes of logits that were not computed, for an answer or its beginning."""
    if known is None or len(known.hashes) < len(answer.hashes):
        return answer
    hashes = (mine or its for mine, its in zip(answer.hashes, known.hashes, strict=False))
    return replace(answer, hashes=tuple(hashes))
