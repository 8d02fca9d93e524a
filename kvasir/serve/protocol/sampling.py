"""The sampling fields that completions and chat share, and their mapping to ``SamplingParams``."""

from __future__ import annotations

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.params import DrawParams, SamplingParams, after
from kvasir.core.request import Context, Standing
from kvasir.sampling.standing import (
    check_class,
    check_priority,
    check_salt,
    check_user,
)
from kvasir.sampling.validate import check_bias_count
from kvasir.text.beam import MAX_BEAM_WIDTH, BeamSearchParams


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingFields(DrawParams, frozen=True, kw_only=True):
    """Values as written; ``sampling.validate`` checks bounds. null counts as absent."""

    model: str | None = None
    n: int = 1
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    cache_salt: str | None = None
    """Cached prefixes are shared among requests of equal salt only: others cannot time them."""
    ttft_ms: int | None = None
    """Milliseconds after the request's arrival until its first token is due."""
    deadline_ms: int | None = None
    """Milliseconds until its last token is due."""
    cache_ttl: int | None = None
    """Seconds that what it computed is kept from eviction after it ended."""
    user: str | None = None
    """Requests of one user share the engine fairly with those of others."""
    safety_identifier: str | None = None
    """OpenAI's newer name for ``user``."""
    priority: int | None = None
    priority_class: str | None = None
    service_tier: str | None = None
    use_beam_search: bool = False
    """Answer with the ``n`` likeliest continuations that as many beams find, instead of drawing."""
    length_penalty: float = 1.0


UNSUPPORTED_SAMPLING: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "early_stopping": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logprob_token_ids": (),
    "prompt_logprobs": (),
    "truncate_prompt_tokens": (),
    "truncation_side": ("left",),
    "spaces_between_special_tokens": (True,),
    "logits_processors": ([],),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "structured_outputs": (),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "request_id": (),
    "kv_transfer_params": (),
    "vllm_xargs": (),
    "stop_regex": (),
    "typical_p": (1, 1.0),
    "metadata": ({},),
    "store": (False,),
    "stream_interval": (1,),
    "mm_processor_kwargs": (),
    "prompt_embeds": (),
}


_DRAWING = (
    *(name for name in DrawParams.__struct_fields__ if name != "temperature"),
    *("logit_bias", "stop", "stop_token_ids", "min_tokens", "ttft_ms", "deadline_ms", "cache_ttl"),
)
"""Fields that beam search has no place for; a seed and a temperature change nothing there."""
_DEFAULTS = {f.name: f.default for f in msgspec.structs.fields(SamplingFields)}
"""Found once: it takes milliseconds."""
_OWN = ("max_tokens", "logit_bias", "logprobs", "prompt_logprobs")
_SAME = tuple(x for x in SamplingParams.__struct_fields__ if x in _DEFAULTS and x not in _OWN)
"""Fields that mean the same here and there."""


def check_beams(fields: SamplingFields, *, logprobs: int | None) -> None:
    """Raises RequestError (400) on fields that do not go together with beam search."""
    if not fields.use_beam_search:
        if fields.length_penalty != 1.0:
            raise RequestError("length_penalty needs use_beam_search: true", param="length_penalty")
        return
    if fields.stream:
        raise RequestError(
            "beam search knows its answer at the end: leave stream out", param="stream"
        )
    given = [name for name in _DRAWING if getattr(fields, name) != _DEFAULTS[name]]
    given += ["logprobs"] if logprobs is not None else []
    if given:
        raise RequestError(
            f"{given[0]} does not go together with use_beam_search: leave it out", param=given[0]
        )
    if fields.n > MAX_BEAM_WIDTH:
        raise RequestError(
            f"n is {fields.n}: beam search has at most {MAX_BEAM_WIDTH} beams", param="n"
        )
    BeamSearchParams(beam_width=1, max_tokens=1, length_penalty=fields.length_penalty).check()


def context_of(fields: SamplingFields, model: Context) -> Context:
    """That of the ``model``, with the salt of the request. Raises RequestError (400)."""
    return msgspec.structs.replace(model, salt=check_salt(fields.cache_salt))


def standing_of(fields: SamplingFields, arrived: float) -> Standing:
    """Its time limits, which are checked already, count from ``arrived``. Raises RequestError
    (400)."""
    return Standing(
        check_class(fields.priority_class, fields.service_tier),
        check_user(fields.user, fields.safety_identifier),
        check_priority(fields.priority),
        after(arrived, fields.ttft_ms),
        after(arrived, fields.deadline_ms),
    )


def to_params(
    fields: SamplingFields,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Raises RequestError (400) when ``stream_options`` comes without ``stream`` or a bias key is
    no id."""
    check_beams(fields, logprobs=logprobs)
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    same = {name: getattr(fields, name) for name in _SAME}
    return SamplingParams(
        **same,
        logit_bias=_bias(fields.logit_bias),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _bias(written: dict[str, float] | None) -> dict[int, float] | None:
    if written is None:
        return None
    check_bias_count(len(written))
    bad = next((key for key in written if not _is_id(key)), None)
    if bad is not None:
        raise RequestError(
            f"logit_bias: the key {bad[:32]!r} is not a token id", param="logit_bias"
        )
    bias = {int(key): value for key, value in written.items()}
    if len(bias) != len(written):
        raise RequestError("logit_bias names a token id twice", param="logit_bias")
    return bias


def _is_id(key: str) -> bool:
    return key.isascii() and key.isdigit() and len(key) <= MAX_ID_DIGITS


MAX_ID_DIGITS = 10
