"""Sampling parameters as the engine receives them, after validation: ids and numbers."""

from __future__ import annotations

import math
from typing import Annotated

import msgspec

MAX_LOGPROBS = 20
"""Alternatives that are reported for a token."""
MAX_LOGPROB_IDS = 128
"""Tokens whose logprobs are reported instead."""
DRAWS = 2
"""Version of what is drawn from given logits; tests/golden/bits.json holds the samplers to it."""
SAMPLERS = ("penalties", "temperature", "min_p", "top_k", "top_p", "typ_p")
"""The stages of a draw by llama.cpp's names, in their order unless another is asked for."""


def mask_words(vocab_size: int) -> int:
    """uint32 of a mask of what may be drawn."""
    return -(-vocab_size // 32)


class Bounds(msgspec.Struct, frozen=True):
    """Of a field that is a number; ``open_low`` excludes the lower one."""

    low: float
    high: float = math.inf
    open_low: bool = False

    def holds(self, value: float) -> bool:
        return self.low <= value <= self.high and not (self.open_low and value == self.low)

    def __str__(self) -> str:
        least = "greater than" if self.open_low else "at least"
        most = f" and at most {self.high:g}" if math.isfinite(self.high) else ""
        return f"{least} {self.low:g}{most}"


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """What holds of a field where clients of another server leave it out; None: they have none."""

    llama: float | None = None
    """llama-server's."""
    ollama: float | None = None
    tgi: float | None = None
    openai: bool = False
    """Every server of OpenAI's API has the field."""
    ggml_name: str = ""
    """Its name in the first two, where that is another."""

    def default(self, peer: str) -> float | None:
        found: float | None = getattr(self, peer)
        return found

    def name(self, peer: str, own: str) -> str:
        """What clients of ``peer`` call the field ``own``."""
        return self.ggml_name or own if peer in ("llama", "ollama") else own


class DrawParams(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that shape a draw: here alone stand their names, types, bounds and defaults, also
    those that clients of other servers count on.

    Callers (``validation.sampling``), clients (``serve.protocol``) and the command line set them,
    the engine and ``native/sample`` read them; what they mean is ``sampling.reference``.
    """

    temperature: Annotated[
        float, Bounds(0.0, 100.0), Peers(llama=0.8, ollama=0.8, openai=True), "0 is greedy."
    ] = 1.0
    top_p: Annotated[
        float,
        Bounds(0.0, 1.0, open_low=True),
        Peers(llama=0.95, ollama=0.9, tgi=1.0, openai=True),
        "Keep the likeliest tokens that reach this probability together.",
    ] = 1.0
    top_k: Annotated[
        int,
        Bounds(-1, 1_000_000),
        Peers(llama=40, ollama=40, tgi=0),
        "Keep the k likeliest tokens; 0 keeps all.",
    ] = 0
    """0 and -1 keep all, as does a k beyond the vocabulary."""
    min_p: Annotated[
        float,
        Bounds(0.0, 1.0),
        Peers(llama=0.05, ollama=0.0),
        "Keep tokens at least this likely relative to the likeliest.",
    ] = 0.0
    repetition_penalty: Annotated[
        float,
        Bounds(0.01, 100.0),
        Peers(llama=1.0, ollama=1.0, tgi=1.0, ggml_name="repeat_penalty"),
        "Above 1, seen tokens become less likely.",
    ] = 1.0
    """Ollama's own default would be a penalty."""
    presence_penalty: Annotated[
        float,
        Bounds(-2.0, 2.0),
        Peers(llama=0.0, ollama=0.0, openai=True),
        "Above 0, tokens of the answer become less likely.",
    ] = 0.0
    frequency_penalty: Annotated[
        float,
        Bounds(-2.0, 2.0),
        Peers(llama=0.0, ollama=0.0, tgi=0.0, openai=True),
        "The same, more so the oftener they came.",
    ] = 0.0
    typical_p: Annotated[
        float,
        Bounds(0.0, 1.0, open_low=True),
        Peers(llama=1.0, ollama=1.0, tgi=1.0),
        "Keep the tokens of most usual surprise that reach this probability together.",
    ] = 1.0
    """Meister et al. 2023, "Locally typical sampling"."""
    repeat_last_n: Annotated[
        int,
        Bounds(-1, 1_000_000),
        Peers(llama=64, ollama=64),
        "Newest tokens that penalties look at; -1: all, 0: none.",
    ] = -1


class TokenParams(DrawParams, frozen=True, kw_only=True, omit_defaults=True):
    """Validated parameters of one choice, in ids and numbers only: all that the engine needs to
    know. ``top_k`` is 0 or more."""

    seed: int
    """Unsigned 64 bit: the Philox key of this choice."""
    max_tokens: int
    min_tokens: int = 0
    """Stop ids cannot be drawn before this many outputs."""
    samplers: tuple[str, ...] = ()
    """Stages in an order of the request's own; empty: those of ``SAMPLERS``."""
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed: bytes = b""
    """Little-endian uint32 [ceil(vocabulary / 32)]: a mask of what may be drawn; empty: all."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """The last token of each cannot follow the others."""
    stop_ids: tuple[int, ...] = ()
    """End-of-sequence ids of the model (unless ignored) and the request's own stop ids."""
    n_logprobs: int = -1
    """-1 none, 0 the chosen token's, k also the k likeliest."""
    logprob_ids: tuple[int, ...] = ()
    """Reported in the place of the likeliest, in this order."""
    n_prompt_logprobs: int = -1
    """As ``n_logprobs``, for the prompt's tokens."""
    constraint: str = ""
    """What outputs must keep to, in words of the engine's ``Masks``; empty: nothing."""
    max_drafts: int = -1
    """Tokens that are drafted in a step, at most; 0: none, -1: as many as the engine likes. They
    change no output."""

    @property
    def has_penalties(self) -> bool:
        """Whether draws depend on how often tokens came before."""
        return self.repeat_last_n != 0 and (
            self.repetition_penalty != 1.0
            or self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
        )

    @property
    def needs_outputs(self) -> bool:
        """Whether draws depend on the tokens before by more than their logits."""
        return self.has_penalties or any(len(word) > 1 for word in self.bad_words)
