"""What a user may ask for: parameters as callers write them, before they are checked."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from kvasir.core.params import MAX_LOGPROBS, Bounds, DrawParams, Peers

DAY_SECONDS = 24 * 3600


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


MAX_CHOICES = 128
"""Of one prompt."""


class SharedParams(DrawParams, frozen=True, kw_only=True):
    """What callers and clients of the server write in the same way."""

    n: Annotated[int, Bounds(1, MAX_CHOICES)] = 1
    samplers: list[str] | None = None
    """Order of the stages, of ``SAMPLERS``; those left out do nothing. None: all, as there."""
    allowed_token_ids: list[int] | None = None
    """Nothing else is drawn."""
    bad_words: list[str] | None = None
    """Texts that are not drawn, with a space before them or without."""
    seed: int | None = None
    min_tokens: int = 0
    stop: str | list[str] | None = None
    stop_regex: str | list[str] | None = None
    """Ends the text where one of them has matched."""
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
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
    speculative: bool | dict[str, Any] | None = None
    """False: no tokens are drafted for it. ``{"method": …, "num_speculative_tokens": n}``: of the
    engine's method, at most n in a step. None: as the engine does."""


class SamplingParams(SharedParams, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a user asks for. Names, meanings and defaults are those of vLLM's ``SamplingParams``.

    Holds whatever the caller wrote: ``validation.params`` checks every bound.
    """

    best_of: Annotated[int | None, Bounds(1, MAX_CHOICES)] = None
    """Choices that are computed; of these the ``n`` of largest log probability are the answer."""
    logit_bias: dict[int, float] | None = None
    max_tokens: int | None = 16
    """None: as many as the context allows."""
    logprobs: Annotated[int | None, Bounds(0, MAX_LOGPROBS)] = None
    """Number of alternatives reported for each output token; 0 reports the chosen token alone."""
    logprob_token_ids: list[int] | None = None
    """Their logprobs are reported for each output token, in the place of alternatives."""
    prompt_logprobs: Annotated[int | None, Bounds(0, MAX_LOGPROBS)] = None
    detokenize: bool = True
    structured_outputs: StructuredOutputs | None = None


class Field(msgspec.Struct, frozen=True):
    """A field of the parameters, as the table above declares it."""

    name: str
    kind: type
    """float, int or bool; object when ``validation.params`` has a check of its own."""
    default: Any
    is_optional: bool
    bounds: Bounds | None
    peers: Peers
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
    peers = next((note for note in notes if isinstance(note, Peers)), Peers())
    text = next((note for note in notes if isinstance(note, str)), "")
    return Field(name, kind, default, type(None) in get_args(written), bounds, peers, text)


OPENAI = tuple(field.name for field in fields_of(DrawParams) if field.peers.openai)
"""Of the numbers that shape a draw, those that every server of OpenAI's API takes."""
