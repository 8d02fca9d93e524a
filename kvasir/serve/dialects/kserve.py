"""KServe's open inference protocol: POST /v2/models/MODEL/infer, generate and generate_stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import KvasirError, RequestError
from kvasir.serve import sse
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.errors import PlainError
from kvasir.serve.answers.events import KservePiece
from kvasir.serve.answers.peers import KserveAnswer, KserveInferred
from kvasir.serve.asked import Asked
from kvasir.serve.dialects.single import PieceGrammar
from kvasir.serve.parts import Parts
from kvasir.serve.protocol.parse import nested, parse_request
from kvasir.serve.protocol.sampling import (
    UNSUPPORTED_SAMPLING,
    SamplingFields,
    standing_of,
    to_params,
)
from kvasir.serve.resolved import Json, Resolved
from kvasir.text.choice import Delta
from kvasir.validation.names import Names
from kvasir.validation.standing import check_salt, check_session

INFER, GENERATE = "kserve.infer", "kserve.generate"
INPUT, OUTPUT = "text_input", "text_output"
VERSION = "1"
DEFAULT_MAX_TOKENS = 16


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    datatype: str
    shape: list[int]
    data: list[Any]
    parameters: dict[str, Any] | None = None


class InferRequest(msgspec.Struct, frozen=True, kw_only=True):
    inputs: list[Tensor]
    model: str
    id: str | None = None
    outputs: list[dict[str, Any]] | None = None
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class KserveGenerate(msgspec.Struct, frozen=True, kw_only=True):
    text_input: str
    model: str
    id: str | None = None
    stream: bool = False
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)


class KserveShow(msgspec.Struct, frozen=True, omit_defaults=True):
    id: str | None = None


def read_infer(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(InferRequest, body, {}, strict=strict)
    for output in request.outputs or ():
        _check_output(output)
    texts = [tensor for tensor in request.inputs if tensor.name == INPUT]
    if len(texts) != 1 or len(request.inputs) != 1:
        raise RequestError(f"inputs must be one tensor called {INPUT}", param="inputs")
    tensor = texts[0]
    if tensor.datatype != "BYTES" or not all(isinstance(text, str) for text in tensor.data):
        raise RequestError(f"{INPUT} must have datatype BYTES and texts", param="inputs")
    if tensor.shape not in ([len(tensor.data)], [len(tensor.data), 1]) or not tensor.data:
        raise RequestError(
            f"{INPUT} has shape {tensor.shape[:4]} and {len(tensor.data)} texts", param="inputs"
        )
    given = {**(tensor.parameters or {}), **request.parameters}
    return _asked(request, INFER, given, tuple(tensor.data), warnings, strict=strict)


def _check_output(output: Json) -> None:
    """Raises RequestError (400) on what no output is, and on a form that none has."""
    if output.get("name") != OUTPUT:
        raise RequestError(f"outputs: there is {OUTPUT} alone", param="outputs")
    if output.get("parameters") not in (None, {}, {"binary_data": False}):
        raise RequestError(
            "outputs: texts are told as JSON, so parameters may be binary_data: false alone",
            param="outputs",
            code="unsupported_parameter",
        )


def read_generate(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(KserveGenerate, body, {}, strict=strict)
    given, prompts = request.parameters, (request.text_input,)
    return _asked(request, GENERATE, given, prompts, warnings, strict=strict)


def read_stream(body: Json, *, strict: bool) -> Asked:
    return read_generate({**body, "stream": True}, strict=strict)


def _asked(
    request: InferRequest | KserveGenerate,
    dialect: str,
    given: Json,
    prompts: tuple[str, ...],
    warnings: tuple[str, ...],
    *,
    strict: bool,
) -> Asked:
    """The parameters are those of text completions."""
    with nested("parameters"):
        fields, notes = parse_request(SamplingFields, given, UNSUPPORTED_SAMPLING, strict=strict)
        for name, idle in (("n", 1), ("stream", False), ("use_beam_search", False)):
            if getattr(fields, name) != idle:
                raise RequestError(f"{name} has no meaning here: leave it out", param=name)
        most = DEFAULT_MAX_TOKENS if fields.max_tokens is None else fields.max_tokens
        params = to_params(fields, max_tokens=most, logprobs=None, prompt_logprobs=None)
        salt, standing = check_salt(fields.cache_salt), standing_of(fields)
    return Asked(
        dialect=dialect,
        params=params,
        prompts=prompts,
        model=request.model,
        names=Names(prompt="inputs" if dialect == INFER else INPUT, scoring=None),
        salt=salt,
        session=check_session(fields.session_id),
        standing=standing,
        stream=isinstance(request, KserveGenerate) and request.stream,
        warnings=warnings + notes,
        show=msgspec.to_builtins(KserveShow(request.id)),
    )


class KserveGrammar(PieceGrammar):
    """Of one text, or of one for each row."""

    headers = sse.HEADERS
    silence = sse.SILENCE

    def _piece(self, delta: Delta) -> Parts:
        return [sse.event({**self._named(), OUTPUT: delta.text})]

    def _last(self, told: Whole, tally: Tally) -> Parts:
        return [sse.event({**self._end(told, tally), OUTPUT: ""})]

    def _answer(self, choices: Sequence[Whole], tally: Tally) -> Json:
        if self._resolved.dialect == GENERATE:
            return {**self._end(choices[0], tally), OUTPUT: choices[0].text}
        rows = {
            "name": OUTPUT,
            "datatype": "BYTES",
            "shape": [len(choices)],
            "data": [choice.text for choice in choices],
        }
        return {**self._named(), "outputs": [rows], **_warned(self._resolved)}

    def failure(self, error: KvasirError) -> bytes:
        return sse.event(error_of(error))

    def _named(self) -> Json:
        found = {"model_name": self._resolved.model, "model_version": VERSION}
        number = msgspec.convert(self._resolved.show, KserveShow).id
        return found if number is None else {**found, "id": number}

    def _end(self, choice: Whole, tally: Tally) -> Json:
        found: Json = {**self._named(), "finish_reason": choice.finish}
        counts = {"prompt_tokens": tally.n_prompt, "completion_tokens": tally.n_output}
        return {**found, **counts, **_warned(self._resolved)}


def _warned(resolved: Resolved) -> Json:
    return {"warnings": resolved.warnings} if resolved.warnings else {}


def error_of(error: KvasirError) -> PlainError:
    return {"error": error.message}


KSERVE_INFER = Dialect(
    INFER,
    "",
    read_infer,
    KserveGrammar,
    error_of,
    request=InferRequest,
    answer=(KserveInferred,),
)
KSERVE_GENERATE = Dialect(
    GENERATE,
    "",
    read_generate,
    KserveGrammar,
    error_of,
    request=KserveGenerate,
    answer=(KserveAnswer,),
    events=(KservePiece, KserveAnswer),
)
KSERVE_STREAM = replace(KSERVE_GENERATE, read=read_stream, answer=())
