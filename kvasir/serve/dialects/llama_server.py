"""llama-server: POST /completion and /infill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from secrets import token_hex
from typing import Any

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenLogprob
from kvasir.core.params import DrawParams
from kvasir.serve import sse
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.errors import LlamaError
from kvasir.serve.answers.events import LlamaPiece
from kvasir.serve.answers.peers import LlamaAnswer, Timings
from kvasir.serve.asked import Asked, Prompt
from kvasir.serve.dialects.single import SingleGrammar
from kvasir.serve.logprobs import FLOOR
from kvasir.serve.parts import Parts
from kvasir.serve.pieces import FileMarker, Mixed
from kvasir.serve.protocol.drawing import drawing_of, names_at, with_drawing
from kvasir.serve.protocol.notes import ping_of
from kvasir.serve.protocol.parse import Allowed, parse_request
from kvasir.serve.protocol.sampling import seed_or_any
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.names import Names
from kvasir.validation.sampling import SamplingParams, StructuredOutputs
from kvasir.validation.speculative import MOST, NAME

COMPLETION, INFILL = "llama.completion", "llama.infill"
N_MAX = "speculative.n_max"
SNIPPET = "\n\n--- snippet ---\n\n"
SALT_BYTES = 16
"""Of a request whose prefixes nobody shares."""
TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "unavailable_error",
}


@with_drawing("llama")
class LlamaRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults are llama-server's."""

    model: str | None = None
    stream: bool = False
    samplers: list[str] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    n_predict: int = -1
    ignore_eos: bool = False
    logit_bias: list[tuple[int, float | bool]] | dict[str, float] | None = None
    n_probs: int = 0
    return_tokens: bool = False
    speculative: bool | dict[str, Any] | None = None
    """As in completions, and ``{"n_max": n}``."""
    speculative_n_max: int | None = msgspec.field(name="speculative.n_max", default=None)
    grammar: str = ""
    """GBNF."""
    json_schema: dict[str, Any] | None = None
    cache_prompt: bool = True
    """Else nothing cached is used, and nobody uses what this one leaves."""
    sse_ping_interval: int | None = None


class LlamaCompletion(LlamaRequest, frozen=True, kw_only=True):
    prompt: str | list[Any]


class LlamaInfill(LlamaRequest, frozen=True, kw_only=True):
    input_prefix: str = ""
    input_suffix: str = ""
    input_extra: list[dict[str, str]] | None = None
    prompt: str = ""
    """What the middle begins with."""


UNSUPPORTED: Allowed = {
    "dry_allowed_length": (),
    "dry_base": (),
    "dry_multiplier": (0, 0.0),
    "dry_penalty_last_n": (),
    "dry_sequence_breakers": (),
    "dynatemp_exponent": (1, 1.0),
    "dynatemp_range": (0, 0.0),
    "id_slot": (-1,),
    "image_data": ([],),
    "lora": ([],),
    "min_keep": (0, 1),
    "mirostat": (0,),
    "mirostat_eta": (),
    "mirostat_tau": (),
    "multimodal_data": ([],),
    "n_cmpl": (1,),
    "n_discard": (0,),
    "n_indent": (0,),
    "n_keep": (0,),
    "post_sampling_probs": (False,),
    "response_fields": ([],),
    "return_progress": (False,),
    "t_max_predict_ms": (0, -1),
    "t_max_prompt_ms": (0, -1),
    "timings_per_token": (False,),
    "top_n_sigma": (-1, -1.0),
    "xtc_probability": (0, 0.0),
    "xtc_threshold": (),
}


class LlamaShow(msgspec.Struct, frozen=True, omit_defaults=True):
    tokens: bool = False


def read_completion(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(LlamaCompletion, body, UNSUPPORTED, strict=strict)
    return _asked(request, COMPLETION, warnings, _prompt(request.prompt))


def read_infill(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(LlamaInfill, body, UNSUPPORTED, strict=strict)
    parts: list[str | int | FileMarker] = []
    for extra in request.input_extra or ():
        name, text = extra.get("filename", ""), extra.get("text", "")
        parts += [FileMarker("file", SNIPPET), f"{name}\n" if name else "", text]
    parts += [
        FileMarker("prefix"),
        request.input_prefix,
        FileMarker("suffix"),
        request.input_suffix,
    ]
    parts += [FileMarker("middle"), request.prompt]
    return _asked(request, INFILL, warnings, Mixed(tuple(parts)))


def _prompt(given: str | list[Any]) -> Prompt:
    if isinstance(given, str):
        return given
    if not given:
        raise RequestError("the prompt is empty: it needs at least one token", param="prompt")
    for part in given:
        if not isinstance(part, str | int) or isinstance(part, bool):
            raise RequestError("prompt must be a text, or a list of texts and ids", param="prompt")
    return Mixed(tuple(given))


def _asked(request: LlamaRequest, dialect: str, warnings: tuple[str, ...], prompt: Prompt) -> Asked:
    limits = "n_predict" if request.n_predict >= 0 else None
    others = {**names_at("llama"), f"{NAME}.{MOST}": N_MAX}
    name = "prompt" if dialect == COMPLETION else "input_prefix"
    return Asked(
        dialect=dialect,
        params=SamplingParams(
            **drawing_of(request, "llama"),
            stop=request.stop,
            ignore_eos=request.ignore_eos,
            samplers=request.samplers,
            seed=seed_or_any(request.seed),
            max_tokens=None if request.n_predict < 0 else request.n_predict,
            logit_bias=_bias(request.logit_bias),
            logprobs=request.n_probs or None,
            structured_outputs=_structure(request),
            speculative=_speculative(request),
        ),
        prompts=(prompt,),
        model=request.model,
        names=Names(
            prompt=name, max_tokens=limits, logprobs="n_probs", scoring=None, others=others
        ),
        salt="" if request.cache_prompt else token_hex(SALT_BYTES),
        stream=request.stream,
        ping=ping_of(request.sse_ping_interval),
        warnings=warnings,
        show=msgspec.to_builtins(LlamaShow(request.return_tokens)),
    )


def _speculative(request: LlamaRequest) -> bool | dict[str, Any] | None:
    """``speculative.n_max``, which may be written as a field or as an object's."""
    asked, n_max = request.speculative, request.speculative_n_max
    nested = asked if isinstance(asked, dict) else {}
    if n_max is not None and asked is not None:
        raise RequestError(f"{NAME} and {N_MAX} say the same: send one of them", param=N_MAX)
    if n_max is not None:
        return {MOST: n_max}
    if "n_max" not in nested:
        return asked
    if MOST in nested:
        raise RequestError(f"n_max and {MOST} say the same: send one of them", param=NAME)
    return {MOST if key == "n_max" else key: value for key, value in nested.items()}


def _structure(request: LlamaRequest) -> StructuredOutputs | None:
    """An empty schema asks for any JSON, as there."""
    if request.grammar and request.json_schema is not None:
        raise RequestError(
            "grammar and json_schema ask for the form of the answer: send one of them",
            param="json_schema",
        )
    if request.json_schema is not None:
        return StructuredOutputs(json=request.json_schema)
    return StructuredOutputs(grammar=request.grammar) if request.grammar else None


def _bias(
    given: list[tuple[int, float | bool]] | dict[str, float] | None,
) -> dict[int, float] | None:
    """false forbids a token."""
    if given is None:
        return None
    pairs = given.items() if isinstance(given, dict) else given
    try:
        return {int(token): -100.0 if bias is False else bias for token, bias in pairs}
    except ValueError:
        raise RequestError("logit_bias must name tokens by their ids", param="logit_bias") from None


class LlamaTextGrammar(SingleGrammar):
    headers = sse.HEADERS
    silence = sse.SILENCE

    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        super().__init__(resolved, envelope, tokenizer)
        self.has_logprobs = resolved.job.params.logprobs is not None
        self._shows_tokens = msgspec.convert(resolved.show, LlamaShow).tokens
        self._probs: list[Json] = []
        self._n_told = 0

    def read(self, delta: Delta) -> Work[None]:
        for item in delta.logprobs:
            self._probs.append(_probability(self._tokenizer, item))
            yield

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        self._told.add(delta)
        if not delta.text and not delta.logprobs:
            return []
        found = {
            "content": delta.text,
            "tokens": delta.tokens if self._shows_tokens else [],
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": tally.n_output,
            "tokens_evaluated": tally.n_prompt,
        }
        if self.has_logprobs:
            found["completion_probabilities"], self._probs = self._probs, []
        return [[sse.event(found)]]

    def ending(self, tally: Tally) -> Iterator[Parts]:
        told = self._told
        told.texts, told.tokens = [], []
        yield [sse.event(self._answer([told], tally))]

    def failure(self, error: KvasirError) -> bytes:
        return sse.event(error_of(error))

    def _answer(self, choices: Sequence[Whole], tally: Tally) -> Json:
        (choice,) = choices
        found: Json = {
            "content": choice.text,
            "tokens": choice.tokens if self._shows_tokens else [],
            "id_slot": -1,
            "stop": True,
            "model": self._resolved.model,
            "tokens_predicted": tally.n_output,
            "tokens_evaluated": tally.n_prompt,
            "generation_settings": self._settings(),
            "has_new_line": "\n" in choice.text,
            "truncated": False,
            "stop_type": _stop_type(choice),
            "stopping_word": choice.stop_reason if isinstance(choice.stop_reason, str) else "",
            "tokens_cached": tally.n_cached,
            "timings": timings(tally),
        }
        if self.has_logprobs:
            found["completion_probabilities"] = self._probs
        if self._resolved.warnings:
            found["warnings"] = self._resolved.warnings
        return found

    def _settings(self) -> Json:
        job = self._resolved.job
        drawing = {name: getattr(job.params, name) for name in DrawParams.__struct_fields__}
        return {**drawing, "seed": job.resolved[0].seed, "n_predict": job.resolved[0].max_tokens}


def _stop_type(choice: Whole) -> str:
    if choice.finish == "length":
        return "limit"
    return "word" if choice.stop_reason is not None else "eos"


def _probability(tokenizer: Tokenizer, item: TokenLogprob) -> Json:
    top = [_entry(tokenizer, token, logprob) for token, logprob in item.top]
    return {**_entry(tokenizer, item.token, item.logprob), "top_logprobs": top}


def _entry(tokenizer: Tokenizer, token: int, logprob: float) -> Json:
    data = tokenizer.token_bytes(token)
    text = data.decode("utf-8", errors="replace")
    return {"id": token, "token": text, "bytes": list(data), "logprob": max(logprob, FLOOR)}


def timings(tally: Tally) -> Timings:
    """Milliseconds, and tokens for each second."""
    prompt, output = tally.seconds()
    n_prompt, n_output = tally.n_prompt - tally.n_cached, tally.n_output
    return {
        "cache_n": tally.n_cached,
        "prompt_n": n_prompt,
        "prompt_ms": _ms(prompt),
        "prompt_per_token_ms": _ms(prompt / max(1, n_prompt)),
        "prompt_per_second": round(n_prompt / prompt, 3) if prompt else None,
        "predicted_n": n_output,
        "predicted_ms": _ms(output),
        "predicted_per_token_ms": _ms(output / max(1, n_output)),
        "predicted_per_second": round(n_output / output, 3) if output else None,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


def error_of(error: KvasirError) -> LlamaError:
    fallback = "invalid_request_error" if error.status < 500 else "server_error"
    kind = TYPES.get(error.status, fallback)
    return {"error": {"code": error.status, "message": error.message, "type": kind}}


LLAMA_COMPLETION = Dialect(
    COMPLETION,
    "",
    read_completion,
    LlamaTextGrammar,
    error_of,
    False,
    LlamaCompletion,
    answer=(LlamaAnswer,),
    events=(LlamaPiece, LlamaAnswer),
)
LLAMA_INFILL = replace(LLAMA_COMPLETION, name=INFILL, read=read_infill, request=LlamaInfill)
