"""Anthropic: POST /v1/messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from kvasir.core.errors import KvasirError, RequestError
from kvasir.serve import sse
from kvasir.serve.answer import Dialect, Tally, Whole
from kvasir.serve.answers.errors import MessagesError, MessagesErrorDetail
from kvasir.serve.answers.events import MESSAGE_EVENTS
from kvasir.serve.answers.messages import MessageAnswer, MessageUsage
from kvasir.serve.asked import Asked
from kvasir.serve.dialects.blocks import (
    BlockEvents,
    MessageToolChoice,
    blocks_of,
    plain_messages,
    read_tools,
)
from kvasir.serve.parts import Parts
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.protocol.sampling import (
    UNSUPPORTED_SAMPLING,
    TurnFields,
    standing_of,
    to_params,
)
from kvasir.serve.protocol.structured import format_of, with_structure
from kvasir.serve.protocol.thinking import (
    SWITCH,
    ThinkingWish,
    check_budget,
    thinking_wish,
    variables_of,
)
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.messages import ChatMessage, Conversation, read_content, read_messages
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.pieces import Piece, Thought
from kvasir.validation.names import Names
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.standing import check_salt, check_session
from kvasir.validation.warn import bounded, escaped

NAME = "messages"
TIERS = {None: None, "auto": "auto", "standard_only": "default"}
STOPS = {"length": "max_tokens", "stop": "end_turn"}
TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

encode = msgspec.json.Encoder().encode


class MessageMetadata(msgspec.Struct, frozen=True):
    user_id: str | None = None


class MessageThinking(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None
    """Nothing is summarized: the reasoning itself is told."""


class OutputConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None
    effort: str | None = None


class MessagesRequest(TurnFields, frozen=True, kw_only=True):
    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    stop_sequences: list[str] | None = None
    metadata: MessageMetadata = MessageMetadata()
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: MessageToolChoice | None = None
    thinking: MessageThinking | None = None
    output_config: OutputConfig = OutputConfig()
    output_format: dict[str, Any] | None = None
    """Its older place."""


UNSUPPORTED: dict[str, tuple[object, ...]] = {
    **{name: idle for name, idle in UNSUPPORTED_SAMPLING.items() if name != "metadata"},
    "container": (),
    "context_management": (),
    "mcp_servers": ([],),
}


def read(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, asked = _read(body, strict=strict)
    if request.max_tokens is None:
        raise RequestError(
            "max_tokens is missing: say how long the answer may be", param="max_tokens"
        )
    return asked


def read_to_count(body: Json, *, strict: bool) -> Asked:
    """The same for who asks for the number of its tokens alone."""
    return _read(body, strict=strict)[1]


def _read(body: Json, *, strict: bool) -> tuple[MessagesRequest, Asked]:
    request, warnings = parse_request(MessagesRequest, body, UNSUPPORTED, strict=strict)
    messages, notes = _conversation(request)
    if notes and strict:
        raise RequestError(notes[0], param="messages", code="unknown_parameter")
    for name, idle in (("n", 1), ("stop", None), ("use_beam_search", False), ("user", None)):
        if getattr(request, name) != idle:
            remedy = {"stop": "use stop_sequences", "user": "use metadata.user_id"}.get(name)
            raise RequestError(f"a message has no {name}: {remedy or 'leave it out'}", param=name)
    params = to_params(request, max_tokens=request.max_tokens, logprobs=None, prompt_logprobs=None)
    effort = request.output_config.effort
    return request, Asked(
        dialect=NAME,
        params=msgspec.structs.replace(_formed(params, request), stop=request.stop_sequences),
        variables=_switched(request, variables_of(request, effort, "output_config.effort")),
        thinking=_thinking_wish(request),
        show=msgspec.to_builtins(MessageShow(hides_thinking=_hides(request))),
        messages=messages,
        tells_pieces=True,
        tools=read_tools(request.tools, request.tool_choice),
        add_special=False,
        model=request.model,
        names=Names(prompt="messages", scoring=None, others={"stop": "stop_sequences"}),
        salt=check_salt(request.cache_salt),
        session=check_session(request.session_id),
        standing=standing_of(_with_standing(request)),
        stream=request.stream,
        stream_interval=request.stream_interval,
        warnings=warnings + notes,
    )


def _switched(request: MessagesRequest, variables: Json) -> Json:
    """With whether to think; "adaptive" leaves it to the model's template."""
    said = {"enabled": True, "disabled": False}
    if request.thinking is None or request.thinking.type not in said:
        return variables
    return {SWITCH: said[request.thinking.type], **variables}


def _thinking_wish(request: MessagesRequest) -> ThinkingWish | None:
    found, asked = thinking_wish(request), request.thinking
    if asked is None or asked.budget_tokens is None:
        return found
    name = "thinking.budget_tokens"
    if asked.type != "enabled" or asked.budget_tokens < 1 or (found and found.budget is not None):
        raise RequestError(
            f"{name} must be at least 1, of type enabled, and the only budget", param=name
        )
    return ThinkingWish(check_budget(asked.budget_tokens, name), request.reasoning_control, name)


def _hides(request: MessagesRequest) -> bool:
    return request.thinking is not None and request.thinking.display == "omitted"


def _formed(params: SamplingParams, request: MessagesRequest) -> SamplingParams:
    """With what is said of the form of the answer."""
    found = {"output_config.format": request.output_config.format}
    found["output_format"] = request.output_format
    for name, said in found.items():
        if said is not None:
            params = with_structure(params, format_of(said, name, ("json_schema",)), name)
    return params


def _with_standing(request: MessagesRequest) -> MessagesRequest:
    """In OpenAI's words."""
    tier = request.service_tier
    if tier not in TIERS:
        raise RequestError(
            f"service_tier is {tier!r:.64}: use auto or standard_only", param="service_tier"
        )
    user = request.metadata.user_id
    return msgspec.structs.replace(request, service_tier=TIERS[tier], user=user)


def _conversation(request: MessagesRequest) -> Conversation:
    for i, message in enumerate(request.messages):
        if message.get("role") not in ("user", "assistant", "system"):
            where = f"messages[{i}].role"
            raise RequestError(f"{where} must be user or assistant", param=where)
    said, notes = read_messages(plain_messages(request.messages), sees=True)
    if said[-1].role == "assistant":
        raise RequestError(
            "the last message is the assistant's: to go on with it is not supported yet, end with "
            "one of the user",
            param="messages",
            code="unsupported_parameter",
        )
    if request.system is None:
        return said, notes
    system = ChatMessage("system", read_content(request.system, "system"))
    return (system, *said), notes + _ignored(request.system)


def _ignored(system: str | Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    if isinstance(system, str):
        return ()
    extra = sorted({str(key) for part in system for key in part} - {"type", "text"})
    return bounded(extra, lambda key: f"system[].{escaped(key)} was ignored")


class MessageShow(msgspec.Struct, frozen=True, omit_defaults=True):
    hides_thinking: bool = False
    """It is counted and not told."""


class MessagesGrammar:
    media = b"application/json"
    headers = sse.HEADERS
    silence = sse.named("ping", {"type": "ping"})
    has_logprobs = False

    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        self._resolved = resolved
        self._envelope = envelope
        self._finish: str | None = None
        self._reason: int | str | None = None
        self._has_calls = False
        self._hides = msgspec.convert(resolved.show, MessageShow).hides_thinking
        self._blocks = None if resolved.job.reading is None else BlockEvents()

    def opening(self, tally: Tally) -> Iterator[Parts]:
        message = self._message([], tally)
        yield [sse.named("message_start", {"type": "message_start", "message": message})]
        if self._blocks is not None:
            return
        block = {"type": "text", "text": ""}
        start = {"type": "content_block_start", "index": 0, "content_block": block}
        yield [sse.named("content_block_start", start)]

    def read(self, delta: Delta) -> Work[None]:
        yield from ()

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        if delta.finish is not None:
            self._finish, self._reason = delta.finish, delta.stop_reason
        self._has_calls = delta.has_calls
        if self._blocks is not None:
            return self._blocks.tell(self._shown(delta.pieces))
        if not delta.text:
            return []
        return [[_DELTA, encode(delta.text), b"}}\n\n"]]

    def ending(self, tally: Tally) -> Iterator[Parts]:
        if self._blocks is not None:
            yield from self._blocks.end()
        else:
            stop = {"type": "content_block_stop", "index": 0}
            yield [sse.named("content_block_stop", stop)]
        said = {"type": "message_delta", "delta": self._stop(), "usage": message_usage(tally)}
        yield [sse.named("message_delta", said)]
        yield [sse.named("message_stop", {"type": "message_stop"})]

    def failure(self, error: KvasirError) -> bytes:
        return sse.named("error", error_of(error))

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        yield
        (choice,) = choices
        self._finish, self._reason = choice.finish, choice.stop_reason
        if self._blocks is not None:
            self._has_calls = choice.has_calls
            blocks = blocks_of(self._shown(choice.pieces))
            return [encode(self._message(blocks, tally))]
        block = {"type": "text", "text": choice.text, "citations": None}
        return [encode(self._message([block], tally))]

    def _shown(self, pieces: Sequence[Piece]) -> Sequence[Piece]:
        return [x for x in pieces if not isinstance(x, Thought)] if self._hides else pieces

    def _stop(self) -> Json:
        word = self._reason if isinstance(self._reason, str) else None
        reason = None if self._finish is None else STOPS[self._finish]
        if self._has_calls and reason == "end_turn":
            reason = "tool_use"
        return {
            "stop_reason": reason if word is None else "stop_sequence",
            "stop_sequence": word,
            "stop_details": None,
            "container": None,
        }

    def _message(self, content: Sequence[Json], tally: Tally) -> Json:
        message = {
            "id": self._envelope.id,
            "type": "message",
            "role": "assistant",
            "model": self._resolved.model,
            "content": content,
            **self._stop(),
            "usage": {**message_usage(tally), "service_tier": "standard"},
        }
        if self._resolved.warnings:
            message["warnings"] = self._resolved.warnings
        return message


_DELTA = (
    b"event: content_block_delta\n"
    b'data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
)


def message_usage(tally: Tally) -> MessageUsage:
    """All tokens of the prompt are input tokens, also those that the cache gave: how many these
    are is not known when a message starts."""
    return {
        "input_tokens": tally.n_prompt,
        "output_tokens": tally.n_output,
        "cache_creation": None,
        "cache_creation_input_tokens": None,
        "cache_read_input_tokens": None,
        "inference_geo": None,
        "output_tokens_details": {"thinking_tokens": tally.n_reasoning}
        if tally.tells_reasoning
        else None,
        "server_tool_use": None,
    }


def error_of(error: KvasirError) -> MessagesError:
    fallback = "invalid_request_error" if error.status < 500 else "api_error"
    kind = TYPES.get(error.status, fallback)
    said: MessagesErrorDetail = {"type": kind, "message": error.message, "code": error.code}
    if isinstance(error, RequestError) and error.param:
        said["param"] = error.param
    return {"type": "error", "error": said, "request_id": None}


MESSAGES = Dialect(
    NAME,
    "msg_",
    read,
    MessagesGrammar,
    error_of,
    request=MessagesRequest,
    answer=(MessageAnswer,),
    events=MESSAGE_EVENTS,
)
MESSAGES_TO_COUNT = replace(MESSAGES, read=read_to_count)
