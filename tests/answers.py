"""What came of a request, as one value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvasir.core.messages import TokenEvent, TokenLogprob


class Hashes(tuple[int, ...]):
    """Of logits. 0 is equal to any: they were not computed, or no executor hashes them."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, tuple) or len(self) != len(other):
            return False
        return all(a == b or not (a and b) for a, b in zip(self, other, strict=True))


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything a client can see of one choice, and the hashes of the logits behind it."""

    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    prompt_logprobs: tuple[TokenLogprob, ...]
    hashes: Hashes
    finish: str | None
    stop_id: int | None
    error_code: str | None
    vector: bytes = b""


def answer_of(events: Sequence[TokenEvent]) -> Answer:
    return Answer(
        tokens=tuple(token for event in events for token in event.tokens),
        logprobs=tuple(item for event in events for item in event.logprobs),
        prompt_logprobs=tuple(item for event in events for item in event.prompt_logprobs),
        hashes=Hashes(item for event in events for item in _hashes(event)),
        finish=events[-1].finish,
        stop_id=events[-1].stop_id,
        error_code=events[-1].error_code,
        vector=b"".join(event.vector for event in events),
    )


def _hashes(event: TokenEvent) -> tuple[int, ...]:
    return event.logits_hashes or (0,) * len(event.tokens)
