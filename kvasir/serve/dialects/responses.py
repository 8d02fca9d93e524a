"""OpenAI: POST /v1/responses."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from kvasir.core.errors import RequestError
from kvasir.serve.answer import Dialect
from kvasir.serve.answers.response_events import RESPONSE_EVENTS
from kvasir.serve.answers.responses import Response
from kvasir.serve.asked import Asked, Keep
from kvasir.serve.dialects.items import ALWAYS_TOLD, LOGPROBS, read_items
from kvasir.serve.dialects.response_answer import (
    ConversationName,
    ResponsesGrammar,
    ResponseShow,
)
from kvasir.serve.errors import describe_error
from kvasir.serve.protocol.notes import check_metadata
from kvasir.serve.protocol.parse import parse_request
from kvasir.serve.protocol.sampling import (
    UNSUPPORTED_SAMPLING,
    TurnFields,
    standing_of,
    to_params,
)
from kvasir.serve.protocol.structured import format_of, with_structure
from kvasir.serve.protocol.thinking import thinking_wish, variables_of
from kvasir.serve.protocol.tools import read_flat_tools
from kvasir.serve.resolved import Json
from kvasir.validation.names import Names
from kvasir.validation.standing import check_salt, check_session

NAME = "responses"

encode = msgspec.json.Encoder().encode


class TextConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "text"})
    verbosity: Literal["medium"] | None = None
    """There is no other."""


class ReasoningConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """The reasoning itself is told, and no summary made of it."""
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    """Its older name."""


class ResponsesRequest(TurnFields, frozen=True, kw_only=True):
    input: str | list[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    metadata: dict[str, str] | None = None
    text: TextConfig = TextConfig()
    prompt_cache_key: str | None = None
    store: bool = True
    background: bool = False
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    """Of tools that the server runs: there are none."""
    reasoning: ReasoningConfig = ReasoningConfig()
    truncation: Literal["auto", "disabled"] = "disabled"
    """auto: the oldest turns are left out until the others fit."""
    conversation: str | ConversationName | None = None
    """What it goes on with; what was asked and answered is added to it."""


MAX_SHOWN_BYTES = 2**20
"""JSON of a field that the first and the last events tell again: each is written in one piece."""
STORED = ("metadata", "store")
"""What is refused elsewhere."""
UNSUPPORTED: dict[str, tuple[object, ...]] = {
    **{name: idle for name, idle in UNSUPPORTED_SAMPLING.items() if name not in STORED},
    "context_management": ([],),
    "moderation": (),
    "prompt": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory",),
}


def read(body: Json, *, strict: bool) -> Asked:
    """Raises RequestError (400)."""
    request, warnings = parse_request(ResponsesRequest, body, UNSUPPORTED, strict=strict)
    messages, notes = read_items(request.input, request.instructions)
    if notes and strict:
        raise RequestError(notes[0], param="input", code="unknown_parameter")
    _check(request)
    params = to_params(
        request,
        max_tokens=request.max_output_tokens,
        logprobs=(request.top_logprobs or 0) if LOGPROBS in (request.include or ()) else None,
        prompt_logprobs=None,
    )
    structure = format_of(request.text.format, "text.format")
    params = with_structure(params, structure, "text.format")
    most = None if request.max_output_tokens is None else "max_output_tokens"
    tools = read_flat_tools(
        request.tools, request.tool_choice, parallel=request.parallel_tool_calls
    )
    show = _show(request)
    _check_shown(show)
    return Asked(
        dialect=NAME,
        params=params,
        messages=messages,
        add_special=False,
        tells_pieces=True,
        drops_turns=request.truncation == "auto",
        tools=tools,
        variables=variables_of(request, request.reasoning.effort, "reasoning.effort"),
        thinking=thinking_wish(request),
        model=request.model,
        names=Names(prompt="input", max_tokens=most, logprobs="top_logprobs", scoring=None),
        salt=check_salt(request.cache_salt),
        session=check_session(request.session_id),
        standing=standing_of(request),
        stream=request.stream,
        stream_interval=request.stream_interval,
        gathers=True,
        warnings=warnings + notes,
        keep=Keep(
            is_stored=request.store,
            is_background=request.background,
            previous=request.previous_response_id,
            conversation=_conversation(request),
            n_instructions=int(request.instructions is not None),
        ),
        show=msgspec.to_builtins(show),
    )


def _check(request: ResponsesRequest) -> None:
    known = (LOGPROBS, *ALWAYS_TOLD)
    other = next((name for name in request.include or () if name not in known), None)
    if other is not None:
        raise RequestError(
            f"include: {other[:64]!r} is not supported yet: leave it out",
            param="include",
            code="unsupported_parameter",
        )
    if request.top_logprobs and LOGPROBS not in (request.include or ()):
        raise RequestError(f"top_logprobs needs include: [{LOGPROBS!r}]", param="top_logprobs")
    for name, idle in (("max_tokens", None), ("n", 1), ("use_beam_search", False)):
        if getattr(request, name) != idle:
            other = "max_output_tokens" if name == "max_tokens" else None
            remedy = f"use {other}" if other else "leave it out"
            raise RequestError(f"a response has no {name}: {remedy}", param=name)
    if request.max_tool_calls is not None and request.max_tool_calls < 1:
        raise RequestError("max_tool_calls must be at least 1", param="max_tool_calls")
    check_metadata(request.metadata or {})
    if request.conversation is not None and request.previous_response_id is not None:
        raise RequestError(
            "conversation does not go together with previous_response_id: send one of them",
            param="conversation",
            code="mutually_exclusive_parameters",
        )
    for name in ("ttft_ms", "deadline_ms", "session_id"):
        if request.background and getattr(request, name) is not None:
            raise RequestError(f"{name} has no meaning in the background", param=name)
    if request.background and not request.store:
        raise RequestError(
            "background: the answer is fetched from the store: leave out store: false",
            param="background",
        )


def _conversation(request: ResponsesRequest) -> str | None:
    said = request.conversation
    return said.id if isinstance(said, ConversationName) else said


def _show(request: ResponsesRequest) -> ResponseShow:
    conversation = _conversation(request)
    tier = request.service_tier
    return ResponseShow(
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        metadata=request.metadata or {},
        top_logprobs=request.top_logprobs or 0,
        user=request.user,
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
        text=_shown_text(request.text),
        tools=[_shown_tool(tool) for tool in request.tools],
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=request.parallel_tool_calls,
        max_tool_calls=request.max_tool_calls,
        reasoning=_shown_reasoning(request.reasoning),
        service_tier="default" if tier in (None, "auto") else tier,
        store=request.store,
        truncation=request.truncation,
        background=request.background,
        previous_response_id=request.previous_response_id,
        conversation=None if conversation is None else ConversationName(conversation),
    )


def _check_shown(show: ResponseShow) -> None:
    """Raises RequestError (400). Instructions are bounded by the context."""
    for name, value in msgspec.structs.asdict(show).items():
        size = len(encode(value))
        if name != "instructions" and size > MAX_SHOWN_BYTES:
            raise RequestError(
                f"{name} takes {size} bytes, and the response tells it again with its events: at "
                f"most {MAX_SHOWN_BYTES} are possible",
                param=name,
            )


def _shown_tool(tool: Json) -> Json:
    idle = {"description": None, "parameters": None, "strict": False}
    return {"type": "function", "name": tool["name"], **idle, **tool}


def _shown_reasoning(asked: ReasoningConfig) -> Json | None:
    summary = asked.summary or asked.generate_summary
    if asked.effort is None and summary is None:
        return None
    return {"effort": asked.effort, "summary": summary}


def _shown_text(text: TextConfig) -> Json:
    """With all that OpenAI's clients expect of a format."""
    form = dict(text.format)
    if form.get("type") == "json_schema":
        form = {"name": "answer", "description": None, "strict": False, **form}
    more = {} if text.verbosity is None else {"verbosity": text.verbosity}
    return {"format": form, **more}


RESPONSES = Dialect(
    NAME,
    "resp_",
    read,
    ResponsesGrammar,
    describe_error,
    request=ResponsesRequest,
    answer=(Response,),
    events=RESPONSE_EVENTS,
)
