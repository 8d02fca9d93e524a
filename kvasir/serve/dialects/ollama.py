"""Ollama: POST /api/generate and /api/chat."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec

from kvasir.core.errors import KvasirError, RequestError
from kvasir.serve import ndjson
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.errors import PlainError
from kvasir.serve.answers.events import ChatPiece, GeneratePiece
from kvasir.serve.answers.ollama import ChatEnd, GenerateAnswer, LoadAnswer
from kvasir.serve.asked import Asked, LoadWish, Prompt
from kvasir.serve.dialects.ollama_calls import calls_of, plain_messages, structure_of, thinking_of
from kvasir.serve.dialects.single import PieceGrammar, encode
from kvasir.serve.logprobs import TokenNames
from kvasir.serve.parts import Parts
from kvasir.serve.pieces import between
from kvasir.serve.protocol.drawing import drawing_of, names_at, with_drawing
from kvasir.serve.protocol.parse import Allowed, nested, parse_request
from kvasir.serve.protocol.sampling import seed_or_any
from kvasir.serve.protocol.tools import read_tools
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.messages import ChatMessage, read_messages
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.pieces import Thought, message_of
from kvasir.validation.names import Names
from kvasir.validation.sampling import SamplingParams, StructuredOutputs
from kvasir.validation.warn import bounded, escaped

GENERATE, CHAT = "ollama.generate", "ollama.chat"
NAMES = {
    **names_at("ollama"),
    "seed": "seed",
    "stop": "stop",
    "max_tokens": "num_predict",
    "room": "num_ctx",
}
"""Our names of the options, and Ollama's."""
MEDIA = (b"", b"application/x-www-form-urlencoded")
"""What its clients say of JSON, curl among them. Pages of other sites say who they are beside."""
DURATION = re.compile(r"-?(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+|-?\d+")


@with_drawing("ollama")
class OllamaOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults are Ollama's."""

    seed: int | None = None
    stop: str | list[str] | None = None
    num_predict: int = -1
    num_ctx: int | None = None


class OllamaRequest(msgspec.Struct, frozen=True, kw_only=True):
    model: str | None = None
    stream: bool = True
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    format: str | dict[str, Any] | None = None
    keep_alive: int | float | str | None = None
    truncate: bool = False
    """Only when sent: Ollama does it by default, and says nothing."""
    speculative: bool | dict[str, Any] | None = None
    logprobs: bool = False
    top_logprobs: int = 0


class OllamaGenerate(OllamaRequest, frozen=True, kw_only=True):
    prompt: str = ""
    suffix: str = ""
    """What comes after the text that is wanted; for models that fill in."""
    system: str | None = None
    raw: bool = False
    context: list[int] = msgspec.field(default_factory=list)
    think: bool | str | None = None


class OllamaChat(OllamaRequest, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    think: bool | str | None = None


UNSUPPORTED: Allowed = {
    "images": ([],),
    "shift": (False,),
    "template": ("",),
    "tools": ([],),
}
UNSUPPORTED_OPTIONS: Allowed = {
    "mirostat": (0,),
    "mirostat_eta": (),
    "mirostat_tau": (),
    "num_keep": (),
    "penalize_newline": (True,),
    "tfs_z": (1, 1.0),
}


def read_generate(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(OllamaGenerate, body, UNSUPPORTED, strict=strict)
    if not request.prompt:
        raise RequestError("the prompt is empty: it needs at least one token", param="prompt")
    said = [ChatMessage("user", request.prompt)]
    if request.system:
        said.insert(0, ChatMessage("system", request.system))
    more: Json = {"before": tuple(request.context), "drops_start": request.truncate}
    prompts: tuple[Prompt, ...] = (request.prompt,)
    if request.suffix:
        _check_plain(request, "suffix")
        prompts = (between(request.prompt, request.suffix),)
    elif not request.raw:
        thinking = {"tells_pieces": True, "variables": thinking_of(request.think)}
        more = {**more, "messages": tuple(said), "add_special": False, **thinking}
    else:
        _check_plain(request, "raw")
    return _asked(request, GENERATE, "prompt", warnings, strict=strict, prompts=prompts, **more)


def _check_plain(request: OllamaGenerate, name: str) -> None:
    """Where there is no conversation. Raises RequestError (400)."""
    if request.context or request.system or request.think is not None:
        raise RequestError(f"{name} does not go together with context, system or think", param=name)


def read_load(
    body: Json, *, strict: bool, kind: type[OllamaRequest], empty: Json, said: Json
) -> LoadWish | None:
    """What ``body`` asks for where nothing is said in it, or None. ``said``: what the answer holds
    in the place of text. Raises RequestError (400)."""
    if any(body.get(name) for name in empty):
        return None
    request, warnings = parse_request(kind, {**body, **empty}, UNSUPPORTED, strict=strict)
    goes = _is_zero(request.keep_alive)
    if not goes:
        check_alive(request.keep_alive)
    return LoadWish(request.model and request.model.removesuffix(":latest"), goes, said, warnings)


def read_chat(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(OllamaChat, body, UNSUPPORTED, strict=strict)
    messages, notes = read_messages(plain_messages(request.messages), sees=True)
    warnings += notes
    more: Json = {
        "messages": messages,
        "add_special": False,
        "drops_turns": request.truncate,
        "tells_pieces": True,
        "tools": read_tools(request.tools, None, parallel=True),
        "variables": thinking_of(request.think),
    }
    return _asked(request, CHAT, "messages", warnings, strict=strict, **more)


def _asked(
    request: OllamaRequest,
    dialect: str,
    prompt: str,
    warnings: tuple[str, ...],
    *,
    strict: bool,
    **more: Any,
) -> Asked:
    options, others = read_options(request.options, strict=strict)
    check_alive(request.keep_alive)
    if request.top_logprobs and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    return Asked(
        dialect=dialect,
        params=_params(options, structure_of(request.format), request),
        model=request.model and request.model.removesuffix(":latest"),
        names=Names(
            prompt=prompt,
            max_tokens=f"options.{NAMES['max_tokens']}" if options.num_predict >= 0 else None,
            logprobs="top_logprobs",
            scoring=None,
            others={ours: f"options.{theirs}" for ours, theirs in NAMES.items()},
        ),
        room=options.num_ctx,
        stream=request.stream,
        warnings=warnings + others,
        **more,
    )


def _params(
    options: OllamaOptions, structure: StructuredOutputs | None, request: OllamaRequest
) -> SamplingParams:
    """Negative numbers stand for what is not said."""
    return SamplingParams(
        structured_outputs=structure,
        **drawing_of(options, "ollama"),
        seed=seed_or_any(options.seed),
        stop=options.stop,
        max_tokens=None if options.num_predict < 0 else options.num_predict,
        logprobs=request.top_logprobs if request.logprobs else None,
        speculative=request.speculative,
    )


def read_options(given: Json, *, strict: bool) -> tuple[OllamaOptions, tuple[str, ...]]:
    """Those of a machine's make-up, such as ``num_gpu``, change no answer: they are named in
    warnings."""
    with nested("options"):
        options, _ = parse_request(OllamaOptions, given, UNSUPPORTED_OPTIONS, strict=strict)
    known = {*OllamaOptions.__struct_encode_fields__, *UNSUPPORTED_OPTIONS}
    others = [key for key, value in given.items() if key not in known and value is not None]
    return options, bounded(others, lambda key: f"options.{escaped(key)} was ignored")


def _is_zero(given: float | str | None) -> bool:
    """As a duration."""
    said = "" if given is None else str(given)
    return bool(DURATION.fullmatch(said.removesuffix(".0"))) and not re.search("[1-9]", said)


def check_alive(given: float | str | None) -> None:
    """A model stays loaded for as long as the server runs."""
    said = "" if given is None else str(given)
    if said and (not DURATION.fullmatch(said.removesuffix(".0")) or not re.search("[1-9]", said)):
        raise RequestError(
            "keep_alive must be a duration other than 0: only an empty prompt may end a model",
            param="keep_alive",
        )


class OllamaGrammar(PieceGrammar):
    headers = ndjson.HEADERS

    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        super().__init__(resolved, envelope, tokenizer)
        at = datetime.fromtimestamp(envelope.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._head = {"model": resolved.model, "created_at": at}
        self._chats = resolved.dialect == CHAT
        self.has_logprobs = resolved.job.params.logprobs is not None
        self._names = TokenNames(tokenizer)
        self._logprobs: list[Json] = []
        """Of tokens that no line has told of."""
        before, _, after = ndjson.line({**self._said("\0"), "done": False}).partition(b'"\\u0000"')
        self._before, self._after = before, after

    def _said(self, text: str) -> Json:
        if self._chats:
            return {**self._head, "message": {"role": "assistant", "content": text}}
        return {**self._head, "response": text}

    def read(self, delta: Delta) -> Work[None]:
        for item in delta.logprobs:
            told = self._names.entry(item.token, item.logprob)
            if item.top:
                told["top_logprobs"] = [self._names.entry(*one) for one in item.top]
            self._logprobs.append(told)
            yield

    def _take_logprobs(self) -> Json:
        taken, self._logprobs = self._logprobs, []
        return {"logprobs": taken} if taken else {}

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        found = super().events(delta, tally)
        thoughts = "".join(piece.text for piece in delta.pieces if isinstance(piece, Thought))
        return [self._more("thinking", thoughts), *found] if thoughts else found

    def ending(self, tally: Tally) -> Iterator[Parts]:
        """Calls are told when they are whole."""
        calls = calls_of(message_of(self._told.pieces))
        if calls:
            yield self._more("tool_calls", calls)
        yield from super().ending(tally)

    def _more(self, key: str, value: Any) -> Parts:
        """A line that tells something beside the content."""
        return [ndjson.line({**self._with(self._said(""), key, value), "done": False})]

    def _with(self, said: Json, key: str, value: Any) -> Json:
        """Of a chat, in its message."""
        if not self._chats:
            return {**said, key: value}
        return {**said, "message": {**said["message"], key: value}}

    def _piece(self, delta: Delta) -> Parts:
        if self.has_logprobs:
            line = {**self._said(delta.text), "done": False, **self._take_logprobs()}
            return [ndjson.line(line)]
        return [self._before, encode(delta.text), self._after]

    def _last(self, told: Whole, tally: Tally) -> Parts:
        return [ndjson.line(self._done("", told, tally))]

    def _answer(self, choices: Sequence[Whole], tally: Tally) -> Json:
        (choice,) = choices
        found = self._done(choice.text, choice, tally)
        message = message_of(choice.pieces)
        if message.reasoning:
            found = self._with(found, "thinking", message.reasoning)
        if message.calls:
            found = self._with(found, "tool_calls", calls_of(message))
        return found

    def _done(self, text: str, choice: Whole, tally: Tally) -> Json:
        found = {**self._said(text), "done": True, "done_reason": choice.finish}
        found |= self._take_logprobs()
        if not self._chats:
            found["context"] = [*self._resolved.job.prompts[0], *choice.tokens]
        if self._resolved.warnings:
            found["warnings"] = self._resolved.warnings
        prompt, output = tally.seconds()
        return {
            **found,
            "total_duration": _nanoseconds(prompt + output),
            "load_duration": 0,
            "prompt_eval_count": tally.n_prompt,
            "prompt_eval_duration": _nanoseconds(prompt),
            "eval_count": tally.n_output,
            "eval_duration": _nanoseconds(output),
        }

    def failure(self, error: KvasirError) -> bytes:
        return ndjson.line(error_of(error))


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)


def error_of(error: KvasirError) -> PlainError:
    return {"error": error.message}


OLLAMA_GENERATE = Dialect(
    GENERATE,
    "",
    read_generate,
    OllamaGrammar,
    error_of,
    request=OllamaGenerate,
    media=MEDIA,
    answer=(GenerateAnswer, LoadAnswer),
    events=(GeneratePiece, GenerateAnswer),
    streams_lines=True,
    read_load=partial(
        read_load, kind=OllamaGenerate, empty={"prompt": "", "suffix": ""}, said={"response": ""}
    ),
)
OLLAMA_CHAT = Dialect(
    CHAT,
    "",
    read_chat,
    OllamaGrammar,
    error_of,
    request=OllamaChat,
    media=MEDIA,
    answer=(ChatEnd, LoadAnswer),
    events=(ChatPiece, ChatEnd),
    streams_lines=True,
    read_load=partial(
        read_load,
        kind=OllamaChat,
        empty={"messages": []},
        said={"message": {"role": "assistant", "content": ""}},
    ),
)
