"""The one validator of sampling parameters, in front of every entry to the engine.

Each failure is a ``RequestError`` (400) whose ``param`` is the offending field, by the name that
the sender gave it, and whose message states the bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import RequestError
from kvasir.core.params import MAX_LOGPROB_IDS, Bounds, DrawParams, TokenParams
from kvasir.validation.checks import check_ids, check_list, short
from kvasir.validation.names import OWN, Names
from kvasir.validation.restrict import (
    Encode,
    allowed_mask,
    cannot_spell,
    check_allowed,
    check_samplers,
    check_words,
    spell_words,
)
from kvasir.validation.sampling import Field, SamplingParams, fields_of
from kvasir.validation.seeds import draw_seed, other_choice
from kvasir.validation.speculative import check_speculative, max_drafts
from kvasir.validation.stops import check_stops

MAX_BIASES = 1024
SEED_LOW, _SEED_END = -(2**63), 2**64
_DRAWING = fields_of(DrawParams)


def check_prompt(
    prompt: Sequence[int], *, vocab_size: int, max_model_len: int, name: str = "prompt"
) -> None:
    """Refuses an empty or over-long prompt and ids outside [0, vocab_size)."""
    if len(prompt) == 0:
        raise RequestError("the prompt is empty: it needs at least one token", param=name)
    check_room(len(prompt), 0, max_model_len, Names(prompt=name))
    check_ids(name, prompt, vocab_size)


def check(
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    n_prompt: int,
    names: Names = OWN,
) -> None:
    """Refuses parameters outside their bounds.

    ``n_prompt`` counts the tokens of the prompt, 0 while it is not known.
    """
    for field in fields_of(SamplingParams):
        _check_field(field, getattr(params, field.name), names)
    _check_seed(params.seed, names.of("seed"))
    _check_best(params)
    _check_lengths(params, n_prompt, max_model_len, names)
    _check_bias(params, vocab_size)
    _check_logprob_ids(params, vocab_size)
    check_allowed(params, vocab_size)
    check_words(params)
    _check_truncation(params, max_model_len, names)
    check_samplers(params)
    check_speculative(params.speculative, names)
    check_stops(params, vocab_size, names)


def resolve_params(
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    n_prompt: int,
    eos_ids: Iterable[int],
    names: Names = OWN,
    constraint: str = "",
    encode: Encode = cannot_spell,
) -> TokenParams:
    """Checks ``params`` and gives what the engine needs for the first choice. ``constraint`` is
    what its ``structured_outputs`` were compiled to.

    ``encode`` spells ``bad_words``. A missing seed is drawn here; to serve several choices of one
    request use ``resolve_choices``.
    """
    check(
        params, vocab_size=vocab_size, max_model_len=max_model_len, n_prompt=n_prompt, names=names
    )
    seed = draw_seed() if params.seed is None else params.seed % 2**64
    room = max_model_len - n_prompt
    goes_on = params.ignore_eos and not constraint
    stops = set(params.stop_token_ids or ()) | (set() if goes_on else set(eos_ids))
    drawing = {field.name: field.kind(getattr(params, field.name)) for field in _DRAWING}
    if params.top_k == -1 or params.top_k >= vocab_size:
        drawing["top_k"] = 0
    max_tokens = room if params.max_tokens is None else params.max_tokens
    return TokenParams(
        **drawing,
        seed=seed,
        max_tokens=max_tokens,
        # where nothing but its end is left of a constraint, that beats both fields
        min_tokens=max_tokens if params.ignore_eos and constraint else params.min_tokens,
        samplers=tuple(params.samplers or ()),
        logit_bias=tuple((i, float(b)) for i, b in sorted((params.logit_bias or {}).items())),
        allowed=allowed_mask(params.allowed_token_ids, vocab_size),
        bad_words=spell_words(params.bad_words or (), encode, vocab_size),
        stop_ids=tuple(sorted(stops)),
        n_logprobs=_n_logprobs(params),
        logprob_ids=tuple(dict.fromkeys(params.logprob_token_ids or ())),
        n_prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
        constraint=constraint,
        max_drafts=max_drafts(params.speculative),
    )


def resolve_choices(
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    n_prompt: int,
    eos_ids: Iterable[int],
    names: Names = OWN,
    constraint: str = "",
    encode: Encode = cannot_spell,
) -> tuple[TokenParams, ...]:
    """``resolve_params`` for each choice that is computed; only the first has logprobs of the
    prompt."""
    first = resolve_params(
        params,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        n_prompt=n_prompt,
        eos_ids=eos_ids,
        names=names,
        constraint=constraint,
        encode=encode,
    )
    return (first, *(other_choice(first, i) for i in range(1, n_choices(params))))


def other_prompt(
    first: TokenParams,
    params: SamplingParams,
    *,
    seed: int,
    n_prompt: int,
    max_model_len: int,
    names: Names = OWN,
) -> TokenParams:
    """Parameters for another prompt of the request whose ``params`` gave ``first``: checked for its
    length, and the same objects in everything else."""
    _check_lengths(params, n_prompt, max_model_len, names)
    room = max_model_len - n_prompt
    max_tokens = room if params.max_tokens is None else params.max_tokens
    ends_late = params.ignore_eos and bool(first.constraint)
    least = max_tokens if ends_late else first.min_tokens
    return msgspec.structs.replace(first, seed=seed, max_tokens=max_tokens, min_tokens=least)


def _check_field(field: Field, value: object, names: Names) -> None:
    if field.bounds is not None:
        if not (field.is_optional and value is None):
            _check_number(names.of(field.name), value, field.bounds, integer=field.kind is int)
    elif field.kind is bool and not isinstance(value, bool):
        raise RequestError(f"{field.name} must be true or false", param=field.name)


def _check_number(name: str, value: object, bounds: Bounds, *, integer: bool = False) -> None:
    kinds = (int,) if integer else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        kind = "an integer" if integer else "a number"
        raise RequestError(f"{name} must be {kind}, not {type(value).__name__}", param=name)
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(f"{name} must be finite, not {value}", param=name)
    if not bounds.holds(value):
        raise RequestError(f"{name} must be {bounds}, not {short(value)}", param=name)


def _check_seed(seed: object, name: str) -> None:
    if seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise RequestError(f"{name} must be an integer, not {type(seed).__name__}", param=name)
    if not SEED_LOW <= seed < _SEED_END:
        raise RequestError(
            f"{name} must be at least -2**63 and below 2**64, not {short(seed)}", param=name
        )


def _check_lengths(params: SamplingParams, n_prompt: int, max_model_len: int, names: Names) -> None:
    unbounded = Bounds(0)
    _check_number("min_tokens", params.min_tokens, unbounded, integer=True)
    most = params.max_tokens
    if most is None:
        names = replace(names, max_tokens=None)
        most = max(1, max_model_len - n_prompt)
    name = names.max_tokens or "max_tokens"
    _check_number(name, most, unbounded, integer=True)
    if most == 0 and params.prompt_logprobs is None:
        scores = f", or 0 with {names.scoring} to score a prompt" if names.scoring else ""
        raise RequestError(f"{name} must be at least 1{scores}", param=name)
    check_room(n_prompt, most, max_model_len, names)
    if params.min_tokens > most:
        bound = f"{name} ({most})" if names.max_tokens else f"the {most} tokens of an answer"
        raise RequestError(
            f"min_tokens ({short(params.min_tokens)}) exceeds {bound}: lower it",
            param="min_tokens",
        )


def check_room(n_prompt: int, n_output: int, max_model_len: int, names: Names = OWN) -> None:
    """Refuses lengths that the context cannot hold together; a prompt of 0 is not known yet."""
    if n_prompt + n_output <= max_model_len:
        return
    whole = f"the prompt has {n_prompt} tokens"
    shorten, lower = f"shorten {names.prompt}", f"lower {names.max_tokens}"
    if n_prompt > max_model_len:
        what, remedy, param = whole, shorten, names.prompt
    elif names.max_tokens is None:
        what = f"{whole} and the answer may have {n_output}" if n_prompt else f"{n_output} tokens"
        remedy, param = f"{shorten} or send max_tokens", names.prompt
    elif n_prompt == 0:
        what = f"{names.max_tokens} asks for {short(n_output)}"
        remedy, param = lower, names.max_tokens
    else:
        what = f"{whole} and {names.max_tokens} asks for {short(n_output)} more"
        remedy, param = f"{shorten} or {lower}", names.max_tokens
    raise RequestError(
        f"{what}, but the context holds {max_model_len}: {remedy}",
        param=param,
        code="context_length_exceeded",
    )


def _check_bias(params: SamplingParams, vocab_size: int) -> None:
    bias = params.logit_bias
    if bias is None:
        return
    if not isinstance(bias, dict):
        raise RequestError("logit_bias must map token ids to numbers", param="logit_bias")
    check_bias_count(len(bias))
    check_ids("logit_bias", tuple(bias), vocab_size)
    for token, value in bias.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -100 <= value <= 100
        ):
            raise RequestError(
                f"logit_bias of token {token} must be from -100 to 100, not {short(value)}",
                param="logit_bias",
            )


def check_bias_count(n: int) -> None:
    """Raises RequestError for more entries than MAX_BIASES, before anybody walks through them."""
    if n > MAX_BIASES:
        raise RequestError(
            f"logit_bias has {n} entries, at most {MAX_BIASES} are allowed", param="logit_bias"
        )


def _check_logprob_ids(params: SamplingParams, vocab_size: int) -> None:
    if params.logprob_token_ids is not None:
        name = "logprob_token_ids"
        ids = check_list(name, params.logprob_token_ids, "token ids", MAX_LOGPROB_IDS)
        check_ids(name, ids, vocab_size)


def n_alternatives(params: SamplingParams) -> int | None:
    """That are reported beside each output token; None: not even its own logprob is."""
    return len(params.logprob_token_ids) if params.logprob_token_ids else params.logprobs


def _n_logprobs(params: SamplingParams) -> int:
    """Choices that are compared have those of their tokens."""
    if params.logprobs is not None:
        return params.logprobs
    return 0 if params.logprob_token_ids or n_choices(params) > params.n else -1


def n_choices(params: SamplingParams) -> int:
    """Of a prompt, that are computed."""
    return params.n if params.best_of is None else params.best_of


def truncate_prompt(prompt: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
    """What ``params`` leave of a prompt."""
    n = params.truncate_prompt_tokens
    if n is None or len(prompt) <= n:
        return prompt
    return prompt[-n:] if params.truncation_side == "left" else prompt[:n]


def _check_truncation(params: SamplingParams, max_model_len: int, names: Names) -> None:
    name = names.of("truncate_prompt_tokens")
    n, side = params.truncate_prompt_tokens, params.truncation_side
    if side not in ("left", "right"):
        raise RequestError(
            f"truncation_side is {short(side)}: use left or right", param="truncation_side"
        )
    if n is not None and n > max_model_len:
        raise RequestError(
            f"{name} is {short(n)}, but the context holds {max_model_len}: lower it", param=name
        )


def _check_best(params: SamplingParams) -> None:
    if params.best_of is not None and params.best_of < params.n:
        raise RequestError(
            f"best_of is {params.best_of} and n is {params.n}: best_of cannot be less",
            param="best_of",
        )
