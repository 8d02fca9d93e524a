"""Sampling parameters: what a user may ask for, and what the engine receives after validation."""

from __future__ import annotations

import msgspec


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for. Names, meanings and defaults are those of vLLM's ``SamplingParams``.

    Holds whatever the caller wrote: ``sampling.validate.resolve`` checks every bound.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    """Keep the k likeliest tokens; 0 and -1 keep all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    """None: as many as the context allows."""
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    """Number of alternatives reported for each output token; 0 reports the chosen token alone."""
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    ttft_ms: int | None = None
    """Milliseconds until the first token is due; a request that cannot make it is refused."""
    deadline_ms: int | None = None
    """Milliseconds until the last token is due."""
    cache_ttl: int | None = None
    """Seconds that its KV blocks are not evicted after it ended, unless a request needs them."""


class TokenParams(msgspec.Struct, frozen=True, kw_only=True):
    """Validated parameters of one choice, in ids and numbers only: all that the engine needs to
    know."""

    seed: int
    """Unsigned 64 bit: the Philox key of this choice."""
    max_tokens: int
    min_tokens: int = 0
    """Stop ids cannot be drawn before this many outputs."""
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_ids: tuple[int, ...] = ()
    """End-of-sequence ids of the model (unless ignored) and the request's own stop ids."""
    n_logprobs: int = -1
    """-1 none, 0 the chosen token's, k also the k likeliest."""
    n_prompt_logprobs: int = -1
    """As ``n_logprobs``, for the prompt's tokens."""

    @property
    def has_penalties(self) -> bool:
        """Whether draws depend on how often tokens came before."""
        return (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )


def after(now: float, milliseconds: int | None) -> float | None:
    """When ``milliseconds`` after ``now`` are over; None without a limit."""
    return None if milliseconds is None else now + milliseconds / 1000
