"""Sampling parameters: what a user may ask for, and what the engine receives after validation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

DAY_SECONDS = 24 * 3600
MAX_LOGPROBS = 20
"""Alternatives that are reported for a token."""
MAX_LOGPROB_IDS = 128
"""Tokens whose logprobs are reported instead."""
SAMPLERS = ("penalties", "temperature", "min_p", "top_k", "top_p", "typ_p")
"""The stages of a draw by llama.cpp's names, in their order unless another is asked for."""


@dataclass(frozen=True, slots=True)
class Bounds:
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


class DrawParams(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers that shape a draw: here alone stand their names, types, bounds and defaults.

    Callers, clients (``serve.protocol``) and the command line set them, the engine and
    ``native/sample`` read them; what they mean is ``sampling.reference``.
    """

    temperature: Annotated[float, Bounds(0.0, 100.0), "0 is greedy."] = 1.0
    top_p: Annotated[
        float,
        Bounds(0.0, 1.0, open_low=True),
        "Keep the likeliest tokens that reach this probability together.",
    ] = 1.0
    top_k: Annotated[int, Bounds(-1, 1_000_000), "Keep the k likeliest tokens; 0 keeps all."] = 0
    """0 and -1 keep all, as does a k beyond the vocabulary."""
    min_p: Annotated[
        float,
        Bounds(0.0, 1.0),
        "Keep tokens at least this likely relative to the likeliest.",
    ] = 0.0
    repetition_penalty: Annotated[
        float, Bounds(0.01, 100.0), "Above 1, seen tokens become less likely."
    ] = 1.0
    presence_penalty: Annotated[
        float, Bounds(-2.0, 2.0), "Above 0, tokens of the answer become less likely."
    ] = 0.0
    frequency_penalty: Annotated[
        float, Bounds(-2.0, 2.0), "The same, more so the oftener they came."
    ] = 0.0
    typical_p: Annotated[
        float,
        Bounds(0.0, 1.0, open_low=True),
        "Keep the tokens of most usual surprise that reach this probability together.",
    ] = 1.0
    """Meister et al. 2023, "Locally typical sampling"."""
    repeat_last_n: Annotated[
        int, Bounds(-1, 1_000_000), "Newest tokens that penalties look at; -1: all, 0: none."
    ] = -1


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer must keep to: one of the first six. Names are those of vLLM's
    ``StructuredOutputsParams``; ``grammar`` compiles it."""

    json: dict[str, Any] | bool | str | None = None
    """A JSON Schema, as a value or as text."""
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    """GBNF or Lark."""
    json_object: bool | None = None
    structural_tag: dict[str, Any] | str | None = None
    whitespace_pattern: str | None = None
    """Regular expression of the white space between the parts of JSON."""
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    strict: bool = False
    """Refuse keywords of a schema that look misspelled, instead of warning."""


class SamplingParams(DrawParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for. Names, meanings and defaults are those of vLLM's ``SamplingParams``.

    Holds whatever the caller wrote: ``validation.params`` checks every bound.
    """

    n: Annotated[int, Bounds(1, 128)] = 1
    best_of: Annotated[int | None, Bounds(1, 128)] = None
    """Choices that are computed; of these the ``n`` of largest log probability are the answer."""
    samplers: list[str] | None = None
    """Order of the stages, of ``SAMPLERS``; those left out do nothing. None: all, as there."""
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    """Nothing else is drawn."""
    bad_words: list[str] | None = None
    """Texts that are not drawn, with a space before them or without."""
    seed: int | None = None
    max_tokens: int | None = 16
    """None: as many as the context allows."""
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: Annotated[int | None, Bounds(0, MAX_LOGPROBS)] = None
    """Number of alternatives reported for each output token; 0 reports the chosen token alone."""
    logprob_token_ids: list[int] | None = None
    """Their logprobs are reported for each output token, in the place of alternatives."""
    prompt_logprobs: Annotated[int | None, Bounds(0, MAX_LOGPROBS)] = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    structured_outputs: StructuredOutputs | None = None
    spaces_between_special_tokens: bool = True
    """Either is what happens: no tokenizer here writes spaces that no token has."""
    truncate_prompt_tokens: Annotated[int | None, Bounds(1)] = None
    """A longer prompt keeps so many tokens."""
    truncation_side: str = "left"
    """Where it loses the others: "left" or "right"."""
    ttft_ms: Annotated[int | None, Bounds(1, DAY_SECONDS * 1000)] = None
    """Milliseconds until the first token is due; a request that cannot make it is refused."""
    deadline_ms: Annotated[int | None, Bounds(1, DAY_SECONDS * 1000)] = None
    """Milliseconds until the last token is due."""
    cache_ttl: Annotated[int | None, Bounds(1, DAY_SECONDS)] = None
    """Seconds that its KV blocks are not evicted after it ended, unless a request needs them."""


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
        return self.has_penalties or (len(self.bad_words) > 0 and max(map(len, self.bad_words)) > 1)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the parameters, as the table above declares it."""

    name: str
    kind: type
    """float, int or bool; object when ``validation.params`` has a check of its own."""
    default: Any
    is_optional: bool
    bounds: Bounds | None
    help: str


@cache
def fields_of(params: type[DrawParams]) -> tuple[Field, ...]:
    """Of ``DrawParams`` or what builds on it. Found once: it takes milliseconds."""
    hints = get_type_hints(params, include_extras=True)
    defaults = {field.name: field.default for field in msgspec.structs.fields(params)}
    return tuple(_field(name, hints[name], default) for name, default in defaults.items())


def _field(name: str, hint: Any, default: Any) -> Field:
    written, *notes = get_args(hint) if hasattr(hint, "__metadata__") else (hint,)
    kinds = [kind for kind in get_args(written) or (written,) if kind is not type(None)]
    kind = kinds[0] if kinds[0] in (float, int, bool) and len(kinds) == 1 else object
    bounds = next((note for note in notes if isinstance(note, Bounds)), None)
    text = next((note for note in notes if isinstance(note, str)), "")
    return Field(name, kind, default, type(None) in get_args(written), bounds, text)


def after(now: float, milliseconds: int | None) -> float:
    """When ``milliseconds`` after ``now`` are over; never without a limit."""
    return math.inf if milliseconds is None else now + milliseconds / 1000
