"""The one validator of sampling parameters, in front of every entry to the engine.

Each failure is a ``RequestError`` (400) whose ``param`` is the offending field, by the name that
the sender gave it, and whose message states the bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.params import (
    Bounds,
    DrawParams,
    Field,
    SamplingParams,
    TokenParams,
    fields_of,
)
from kvasir.sampling.names import OWN, Names
from kvasir.sampling.philox import choice_seed, draw_seed

MAX_BIASES = 1024
MAX_STOP_STRINGS = 32
MAX_STOP_BYTES = 4096
"""UTF-8 bytes of one stop string."""
MAX_STOP_IDS = 128
_SEED_LOW, _SEED_END = -(2**63), 2**64
_DRAWING = fields_of(DrawParams)


def check_prompt(
    prompt: Sequence[int], *, vocab_size: int, max_model_len: int, name: str = "prompt"
) -> None:
    """Refuses an empty or over-long prompt and ids outside [0, vocab_size)."""
    if len(prompt) == 0:
        raise RequestError("the prompt is empty: it needs at least one token", param=name)
    check_room(len(prompt), 0, max_model_len, Names(prompt=name))
    _check_ids(name, prompt, vocab_size)


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
    _check_seed(params.seed)
    _check_lengths(params, n_prompt, max_model_len, names)
    _check_bias(params, vocab_size)
    _check_stops(params, vocab_size)


def resolve_params(
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    n_prompt: int,
    eos_ids: Iterable[int],
    choice: int = 0,
    names: Names = OWN,
) -> TokenParams:
    """Checks ``params`` and gives what the engine needs for choice ``choice`` of n.

    A missing seed is drawn here; to serve several choices of one request use ``resolve_choices``.
    """
    check(
        params, vocab_size=vocab_size, max_model_len=max_model_len, n_prompt=n_prompt, names=names
    )
    seed = draw_seed() if params.seed is None else params.seed % 2**64
    room = max_model_len - n_prompt
    stops = set(params.stop_token_ids or ()) | (set() if params.ignore_eos else set(eos_ids))
    drawing = {field.name: field.kind(getattr(params, field.name)) for field in _DRAWING}
    if params.top_k == -1 or params.top_k >= vocab_size:
        drawing["top_k"] = 0
    return TokenParams(
        **drawing,
        seed=choice_seed(seed, choice),
        max_tokens=room if params.max_tokens is None else params.max_tokens,
        min_tokens=params.min_tokens,
        logit_bias=tuple((i, float(b)) for i, b in sorted((params.logit_bias or {}).items())),
        stop_ids=tuple(sorted(stops)),
        n_logprobs=-1 if params.logprobs is None else params.logprobs,
        n_prompt_logprobs=-1 if params.prompt_logprobs is None else params.prompt_logprobs,
    )


def resolve_choices(
    params: SamplingParams,
    *,
    vocab_size: int,
    max_model_len: int,
    n_prompt: int,
    eos_ids: Iterable[int],
    draw: Callable[[], int] = draw_seed,
    names: Names = OWN,
) -> tuple[TokenParams, ...]:
    """``resolve_params`` for each of ``n`` choices; only the first has logprobs of the prompt.

    ``draw`` gives the seed when ``params`` have none.
    """
    eos = tuple(eos_ids)
    if params.seed is None:
        params = msgspec.structs.replace(params, seed=draw())
    first = resolve_params(
        params,
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        n_prompt=n_prompt,
        eos_ids=eos,
        names=names,
    )
    return (first, *(other_choice(first, i) for i in range(1, params.n)))


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
    return msgspec.structs.replace(first, seed=seed, max_tokens=max_tokens)


def other_choice(first: TokenParams, choice: int) -> TokenParams:
    """Parameters of another choice of the prompt that ``first`` is the first of."""
    seed = choice_seed(first.seed, choice)
    return msgspec.structs.replace(first, seed=seed, n_prompt_logprobs=-1)


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
        raise RequestError(f"{name} must be {bounds}, not {_short(value)}", param=name)


def _check_seed(seed: object) -> None:
    if seed is None:
        return
    if isinstance(seed, bool) or not isinstance(seed, int):
        raise RequestError(f"seed must be an integer, not {type(seed).__name__}", param="seed")
    if not _SEED_LOW <= seed < _SEED_END:
        raise RequestError(
            f"seed must be at least -2**63 and below 2**64, not {_short(seed)}", param="seed"
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
            f"min_tokens ({_short(params.min_tokens)}) exceeds {bound}: lower it",
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
        what = f"{names.max_tokens} asks for {_short(n_output)}"
        remedy, param = lower, names.max_tokens
    else:
        what = f"{whole} and {names.max_tokens} asks for {_short(n_output)} more"
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
    _check_ids("logit_bias", tuple(bias), vocab_size)
    for token, value in bias.items():
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not -100 <= value <= 100
        ):
            raise RequestError(
                f"logit_bias of token {token} must be from -100 to 100, not {_short(value)}",
                param="logit_bias",
            )


def check_bias_count(n: int) -> None:
    """Raises RequestError for more entries than MAX_BIASES, before anybody walks through them."""
    if n > MAX_BIASES:
        raise RequestError(
            f"logit_bias has {n} entries, at most {MAX_BIASES} are allowed", param="logit_bias"
        )


def _check_stops(params: SamplingParams, vocab_size: int) -> None:
    ids = params.stop_token_ids
    if ids is not None:
        if not isinstance(ids, list | tuple):
            raise RequestError("stop_token_ids must be a list of token ids", param="stop_token_ids")
        if len(ids) > MAX_STOP_IDS:
            raise RequestError(
                f"stop_token_ids has {len(ids)} ids, at most {MAX_STOP_IDS} are allowed",
                param="stop_token_ids",
            )
        _check_ids("stop_token_ids", ids, vocab_size)
    strings = stop_strings(params)
    if strings and not params.detokenize:
        raise RequestError(
            "stop strings need text: leave detokenize true or use stop_token_ids", param="stop"
        )
    if len(strings) > MAX_STOP_STRINGS:
        raise RequestError(
            f"stop has {len(strings)} strings, at most {MAX_STOP_STRINGS} are allowed", param="stop"
        )
    for string in strings:
        if not isinstance(string, str) or string == "":
            raise RequestError("stop must hold non-empty strings", param="stop")
        if len(string.encode("utf-8", "surrogatepass")) > MAX_STOP_BYTES:
            raise RequestError(f"a stop string is longer than {MAX_STOP_BYTES} bytes", param="stop")


def stop_strings(params: SamplingParams) -> tuple[str, ...]:
    """``stop`` as a tuple, whatever form the caller wrote."""
    if params.stop is None:
        return ()
    if isinstance(params.stop, str):
        return (params.stop,)
    if not isinstance(params.stop, list | tuple):
        raise RequestError("stop must be a string or a list of strings", param="stop")
    return tuple(params.stop)


def _check_ids(name: str, ids: Sequence[int], vocab_size: int) -> None:
    if not ids:
        return
    others = {type(i) for i in ids} - {int}
    if others:
        raise RequestError(
            f"{name} must hold integer token ids, not {others.pop().__name__}", param=name
        )
    worst = min(ids) if min(ids) < 0 else max(ids)
    if not 0 <= worst < vocab_size:
        raise RequestError(
            f"{name} has token id {_short(worst)}, the vocabulary has ids 0 to {vocab_size - 1}",
            param=name,
        )


def _short(value: object) -> str:
    """A value for a message; huge integers must not become megabytes of digits."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return f"an integer of {value.bit_length()} bits"
    return repr(value)[:80]
