"""Text Generation Inference: POST /generate and /generate_stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import KvasirError, RequestError
from kvasir.core.messages import TokenLogprob
from kvasir.serve import sse
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.errors import TgiError
from kvasir.serve.answers.events import TgiEvent
from kvasir.serve.answers.peers import TgiAnswer
from kvasir.serve.asked import Asked
from kvasir.serve.dialects.single import SingleGrammar, encode
from kvasir.serve.frames import decode_scores
from kvasir.serve.logprobs import FLOOR
from kvasir.serve.parts import Parts
from kvasir.serve.protocol.drawing import drawing_of, names_at, with_drawing
from kvasir.serve.protocol.parse import Allowed, nested, parse_request
from kvasir.serve.protocol.structured import tgi_grammar
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.validation.names import Names
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.seeds import choice_seed
from kvasir.validation.speculative import MOST
from kvasir.validation.speculative import NAME as SPECULATIVE

NAME = "tgi"
FINISHES = {"length": "length", "stop": "eos_token"}
NAMES = {
    **{name: name for name in ("temperature", "seed", "stop", "best_of")},
    f"{SPECULATIVE}.{MOST}": f"{SPECULATIVE}.{MOST}",
    **names_at("tgi"),
    "truncate_prompt_tokens": "truncate",
}
"""Our names of the parameters, and TGI's."""


@with_drawing("tgi")
class TgiParameters(msgspec.Struct, frozen=True, kw_only=True):
    temperature: float | None = None
    do_sample: bool = False
    """Greedy without it, unless a temperature is sent."""
    seed: int | None = None
    stop: list[str] | None = None
    max_new_tokens: int = 100
    best_of: int | None = None
    """So many are computed, and the likeliest is the answer."""
    return_full_text: bool = False
    details: bool = False
    decoder_input_details: bool = False
    """With details, those of the prompt's tokens among them."""
    top_n_tokens: int = 0
    truncate: int | None = None
    grammar: dict[str, Any] | None = None
    speculative: bool | dict[str, Any] | None = None


class TgiRequest(msgspec.Struct, frozen=True, kw_only=True):
    inputs: str
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    stream: bool = False
    model: str | None = None


UNSUPPORTED: Allowed = {
    "adapter_id": (),
    "watermark": (False,),
}


class TgiShow(msgspec.Struct, frozen=True, omit_defaults=True):
    before: str = ""
    """What the text begins with: the prompt, where it is given back."""
    details: bool = False
    prefill: bool = False
    """Whether they tell of the prompt's tokens."""


def read(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(TgiRequest, body, {}, strict=strict)
    with nested("parameters"):
        sent, notes = parse_request(TgiParameters, request.parameters, UNSUPPORTED, strict=strict)
    is_greedy = not sent.do_sample and sent.temperature is None
    if request.stream and (sent.best_of or 1) != 1:
        raise RequestError("best_of does not go together with stream", param="parameters.best_of")
    _check_scores(sent, streams=request.stream)
    grammar = None if sent.grammar is None else tgi_grammar(sent.grammar, "parameters.grammar")
    scores = sent.decoder_input_details
    has_details = sent.details or scores
    needs_logprobs = request.stream or has_details
    show = TgiShow(request.inputs if sent.return_full_text else "", has_details, scores)
    return Asked(
        dialect=NAME,
        params=SamplingParams(
            temperature=0.0 if is_greedy else 1.0 if sent.temperature is None else sent.temperature,
            truncate_prompt_tokens=sent.truncate,
            **drawing_of(sent, "tgi"),
            seed=sent.seed,
            stop=sent.stop,
            best_of=sent.best_of,
            max_tokens=sent.max_new_tokens,
            logprobs=sent.top_n_tokens if needs_logprobs else None,
            prompt_logprobs=0 if scores else None,
            structured_outputs=grammar,
            speculative=sent.speculative,
        ),
        prompts=(request.inputs,),
        model=request.model,
        names=Names(
            prompt="inputs",
            max_tokens="parameters.max_new_tokens",
            logprobs="parameters.top_n_tokens",
            scoring=None,
            others={ours: f"parameters.{name}" for ours, name in NAMES.items()},
        ),
        stream=request.stream,
        gathers=has_details,
        warnings=warnings + notes,
        show=msgspec.to_builtins(show),
    )


def _check_scores(sent: TgiParameters, *, streams: bool) -> None:
    """Raises RequestError (400)."""
    if not sent.decoder_input_details:
        return
    name = "parameters.decoder_input_details"
    if streams:
        raise RequestError(f"{name} does not go together with stream", param=name)
    if sent.max_new_tokens == 0:
        name = "parameters.max_new_tokens"
        raise RequestError(f"{name} must be at least 1", param=name)


def read_stream(body: Json, *, strict: bool) -> Asked:
    return read({**body, "stream": True}, strict=strict)


class TgiGrammar(SingleGrammar):
    headers = sse.HEADERS
    silence = sse.SILENCE

    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        super().__init__(resolved, envelope, tokenizer)
        self._show = msgspec.convert(resolved.show, TgiShow)
        self.has_logprobs = bool(resolved.job.params.logprobs) or self._show.prefill
        self._prefill: list[Json] = []
        if self._show.prefill:
            first = resolved.job.prompts[0][0]
            self._prefill = [{"id": first, "text": _text(tokenizer, first), "logprob": None}]
        self._tokens: dict[int, list[Json]] = {}
        """By choice."""
        self._number = 0
        self._held: Parts = []
        """The newest event, which the end of the text may belong to."""

    def read(self, delta: Delta) -> Work[None]:
        for item in decode_scores(delta.scores) if self._show.prefill and delta.scores else ():
            known = self._token(item, _text(self._tokenizer, item.token))
            self._prefill.append({name: known[name] for name in ("id", "text", "logprob")})
            yield
        if self._show.details and not self._resolved.stream:
            found = self._tokens.setdefault(delta.index, [])
            for item in delta.logprobs:
                found.append(self._token(item, _text(self._tokenizer, item.token)))
                yield

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        """One for each token; the text of several, and what was held back, is told with the last
        of them."""
        self._told.add(delta)
        found: list[Parts] = []
        for i, item in enumerate(delta.logprobs):
            is_last = i == len(delta.logprobs) - 1
            ends = is_last and delta.finish is not None
            self._number += 1
            said: Json = {
                "index": self._number,
                "token": self._token(item, delta.text if is_last else ""),
                "top_tokens": self._top(item),
                "generated_text": self._show.before + self._told.text if ends else None,
                "details": self._details(self._told, tally) if ends else None,
            }
            if ends and self._resolved.warnings:
                said["warnings"] = self._resolved.warnings
            found.append([b"data:" + encode(said) + b"\n\n"])
        return found

    def ending(self, tally: Tally) -> Iterator[Parts]:
        yield from ()

    def failure(self, error: KvasirError) -> bytes:
        return b"data:" + encode(error_of(error)) + b"\n\n"

    def _answer(self, choices: Sequence[Whole], tally: Tally) -> Json:
        (choice,) = choices
        found: Json = {"generated_text": self._show.before + choice.text}
        if self._show.details:
            more = {"prefill": self._prefill, "tokens": self._tokens.get(choice.index, [])}
            found["details"] = {**self._details(choice, tally), **more}
        if self._resolved.warnings:
            found["warnings"] = self._resolved.warnings
        return found

    def _details(self, choice: Whole, tally: Tally) -> Json:
        has_word = choice.stop_reason is not None
        return {
            "finish_reason": "stop_sequence" if has_word else FINISHES[str(choice.finish)],
            "generated_tokens": len(choice.tokens),
            "input_length": tally.n_prompt,
            "seed": choice_seed(self._resolved.job.resolved[0].seed, choice.index),
        }

    def _top(self, item: TokenLogprob) -> list[Json]:
        known = ((TokenLogprob(token, value), token) for token, value in item.top)
        return [self._token(other, _text(self._tokenizer, token)) for other, token in known]

    def _token(self, item: TokenLogprob, text: str) -> Json:
        return {
            "id": item.token,
            "text": text,
            "logprob": max(item.logprob, FLOOR),
            "special": item.token in self._tokenizer.special_ids,
        }


def _text(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", errors="replace")


def error_of(error: KvasirError) -> TgiError:
    kinds = {429: "overloaded", 400: "validation", 404: "validation"}
    return {"error": error.message, "error_type": kinds.get(error.status, "generation")}


TGI = Dialect(
    NAME,
    "",
    read,
    TgiGrammar,
    error_of,
    False,
    TgiRequest,
    answer=(TgiAnswer,),
    events=(TgiEvent,),
)
TGI_STREAM = replace(TGI, read=read_stream, answer=())
