"""The sampling fields that completions and chat share, and their mapping to ``SamplingParams``."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from kvasir.core.errors import RequestError
from kvasir.core.params import DrawParams
from kvasir.core.request import Standing
from kvasir.serve.protocol.structured import StructuredFields, structured_of
from kvasir.text.beam import MAX_BEAM_WIDTH, BeamSearchParams
from kvasir.validation.params import SEED_LOW, check_bias_count
from kvasir.validation.sampling import SamplingParams, SharedParams
from kvasir.validation.standing import check_class, check_priority, check_user


class StreamOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False
    """Padding that hides the lengths of events; there is none, so only false is taken."""


class SamplingFields(StructuredFields, frozen=True, kw_only=True):
    """Values as written; ``validation.params`` checks bounds. null counts as absent."""

    model: str | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    logit_bias: dict[str, float] | None = None
    no_stop_trim: bool = False
    """SGLang's name for ``include_stop_str_in_output``."""
    stream_interval: int = 1
    """Tokens of a choice in an event of its stream."""
    cache_salt: str | None = None
    """Cached prefixes are shared among requests of equal salt only: others cannot time them."""
    session_id: str | None = None
    """Requests of one session are answered one after another, and leave the next what they
    computed."""
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
    early_stopping: bool = False
    """Beam search ends with the first ``n`` beams that ended."""


class TurnFields(SamplingFields, frozen=True, kw_only=True):
    """With what may be said of reasoning."""

    chat_template_kwargs: dict[str, Any] | None = None
    enable_thinking: bool | None = None
    thinking_token_budget: int | None = None
    thinking_budget_tokens: int | None = None
    reasoning_control: bool = False


UNSUPPORTED_SAMPLING: dict[str, tuple[object, ...]] = {
    "best_of": (1,),
    "logprob_token_ids": (),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "request_id": (),
    "rid": (),
    "session_params": ({},),
    "metadata": ({},),
    "beam_search_diversity_rate": (0, 0.0),
    "logits_processors": ([],),
    "guided_decoding_backend": (),
    "kv_transfer_params": (),
    "vllm_xargs": (),
    "store": (False,),
    "mm_processor_kwargs": (),
    "prompt_embeds": (),
    "watermark": (False,),
}


_DRAWING = (
    *(name for name in DrawParams.__struct_fields__ if name != "temperature"),
    *("logit_bias", "stop", "stop_token_ids", "min_tokens", "ttft_ms", "cache_ttl"),
    "session_id",
    *("stop_regex", "samplers", "allowed_token_ids", "bad_words"),
)
"""Fields that beam search has no place for; a seed and a temperature change nothing there."""
_DEFAULTS = {f.name: f.default for f in msgspec.structs.fields(SamplingFields)}
"""Found once: it takes milliseconds."""
_SAME = SharedParams.__struct_fields__
"""Fields that mean the same here and there."""


MAX_STREAM_INTERVAL = 1024
SESSION_SECONDS = 300
"""``cache_ttl`` of who has a session and says none."""


def _check_stream(fields: SamplingFields) -> None:
    if fields.stream_options is not None and not fields.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    if fields.stream_options is not None and fields.stream_options.include_obfuscation:
        raise RequestError(
            "stream_options.include_obfuscation is not supported yet: leave it out",
            param="stream_options.include_obfuscation",
            code="unsupported_parameter",
        )
    if not 1 <= fields.stream_interval <= MAX_STREAM_INTERVAL:
        raise RequestError(
            f"stream_interval must be at least 1 and at most {MAX_STREAM_INTERVAL}",
            param="stream_interval",
        )


def check_beams(fields: SamplingFields, *, logprobs: int | None) -> None:
    """Raises RequestError (400) on fields that do not go together with beam search."""
    if not fields.use_beam_search:
        for name in ("length_penalty", "early_stopping"):
            if getattr(fields, name) != _DEFAULTS[name]:
                raise RequestError(f"{name} needs use_beam_search: true", param=name)
        return
    if fields.stream:
        raise RequestError(
            "beam search knows its answer at the end: leave stream out", param="stream"
        )
    given = [name for name in _DRAWING if getattr(fields, name) != _DEFAULTS[name]]
    given += ["logprobs"] if logprobs is not None else []
    given += ["speculative"] if fields.speculative else []
    given += ["structured_outputs"] if structured_of(fields) is not None else []
    if given:
        raise RequestError(
            f"{given[0]} does not go together with use_beam_search: leave it out", param=given[0]
        )
    if fields.n > MAX_BEAM_WIDTH:
        raise RequestError(
            f"n is {fields.n}: beam search has at most {MAX_BEAM_WIDTH} beams", param="n"
        )
    BeamSearchParams(beam_width=1, max_tokens=1, length_penalty=fields.length_penalty).check()


class StandingFields(Protocol):
    """Who asks, and when it is served."""

    @property
    def priority_class(self) -> str | None: ...
    @property
    def service_tier(self) -> str | None: ...
    @property
    def user(self) -> str | None: ...
    @property
    def safety_identifier(self) -> str | None: ...
    @property
    def priority(self) -> int | None: ...


def standing_of(fields: StandingFields) -> Standing:
    """Without its time limits. Raises RequestError (400)."""
    return Standing(
        check_class(fields.priority_class, fields.service_tier),
        check_user(fields.user, fields.safety_identifier),
        check_priority(fields.priority),
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
    _check_stream(fields)
    same = {name: getattr(fields, name) for name in _SAME}
    same["include_stop_str_in_output"] |= fields.no_stop_trim
    if fields.session_id is not None and fields.cache_ttl is None:
        same["cache_ttl"] = SESSION_SECONDS
    return SamplingParams(
        **same,
        structured_outputs=structured_of(fields),
        logit_bias=_bias(fields.logit_bias),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def seed_or_any(seed: int | None) -> int | None:
    """Of those who ask for any seed with a negative one. A number that is no seed stays, to be
    refused."""
    return None if seed is not None and SEED_LOW <= seed < 0 else seed


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
