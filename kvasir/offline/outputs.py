"""What ``LLM`` answers with: the shape of vLLM's ``RequestOutput``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvasir.core.messages import TokenLogprob
from kvasir.text.beam import Beam, Search
from kvasir.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Logprob:
    """Natural-log probability of one token under the model's unmodified distribution."""

    logprob: float
    rank: int | None = None
    """1 for the likeliest; None for a token of ``logprob_token_ids`` that was not chosen."""
    decoded_token: str | None = None


LogprobsOfToken = dict[int, Logprob]
"""By token id: the chosen token and, likeliest first, the alternatives asked for."""


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One choice of one prompt."""

    index: int
    text: str
    token_ids: list[int]
    """With the token that ended it."""
    cumulative_logprob: float | None
    """Sum over the tokens; None unless logprobs were asked for."""
    logprobs: list[LogprobsOfToken] | None
    finish_reason: str | None
    """"stop", "length", or "error" when the engine could not go on with this choice."""
    stop_reason: int | str | None
    """The stop string or requested stop id that ended it; of an error its message."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All choices of one prompt."""

    request_id: str
    prompt: str | None
    """None when the prompt was given as ids."""
    prompt_token_ids: list[int]
    prompt_logprobs: list[LogprobsOfToken | None] | None
    """One entry per prompt token; None for the first, which has no probability."""
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache gave to the first choice."""
    accepted_prediction_tokens: int = 0
    """Of all choices: drafted tokens that the prediction has there, and the answer."""
    rejected_prediction_tokens: int = 0
    """Those that the answer does not have: they are in no other count."""


def logprobs_by_id(
    items: Iterable[TokenLogprob], tokenizer: Tokenizer, are_named: bool = False
) -> list[LogprobsOfToken]:
    """vLLM's form of the engine's logprobs. ``are_named``: the tokens beside the chosen ones were
    asked for and are not the likeliest."""
    return [_by_id(item, tokenizer, are_named) for item in items]


def _by_id(item: TokenLogprob, tokenizer: Tokenizer, are_named: bool) -> LogprobsOfToken:
    ranked: list[tuple[int, float, int | None]] = [
        (token, value, None if are_named else i + 1) for i, (token, value) in enumerate(item.top)
    ]
    ranked.append((item.token, item.logprob, item.rank))
    return {token: Logprob(value, rank, _text(tokenizer, token)) for token, value, rank in ranked}


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", errors="replace")


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One beam; ``tokens`` and ``text`` begin with the prompt, as in vLLM."""

    tokens: list[int]
    text: str
    cum_logprob: float
    finish_reason: str
    """"stop" when it ended by itself, else "length"."""


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The beams of one prompt, best first."""

    sequences: list[BeamSearchSequence]


def beams_of(tokenizer: Tokenizer, search: Search) -> BeamSearchOutput:
    """The best of a search that is done."""
    return BeamSearchOutput([_sequence(tokenizer, search, beam) for beam in search.best()])


def _sequence(tokenizer: Tokenizer, search: Search, beam: Beam) -> BeamSearchSequence:
    tokens = [*search.prompt, *beam.tokens]
    reason = "stop" if beam.is_ended else "length"
    return BeamSearchSequence(tokens, tokenizer.decode(tokens), beam.cum_logprob, reason)
