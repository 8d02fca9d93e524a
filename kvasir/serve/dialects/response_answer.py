"""The answers of OpenAI's Responses."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.serve import sse
from kvasir.serve.answer import Tally, Whole
from kvasir.serve.answers.responses import ResponseUsage
from kvasir.serve.dialects.response_items import EventWriter, OutputItems, encode
from kvasir.serve.logprobs import ChatLogprobs, TokenNames
from kvasir.serve.parts import HOLE, Parts, filled, listed
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.tokenizer import Tokenizer
from kvasir.toolcalls.pieces import CallArguments, CallBegin, Said, Thought
from kvasir.validation.sampling import OPENAI


class ConversationName(msgspec.Struct, frozen=True):
    id: str


class ResponseShow(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a response says of its request."""

    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str] = {}
    top_logprobs: int = 0
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    text: Json = {}
    tools: list[Json] = []
    tool_choice: str | Json = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    reasoning: Json | None = None
    service_tier: str = "default"
    store: bool = False
    truncation: str = "disabled"
    background: bool = False
    previous_response_id: str | None = None
    conversation: ConversationName | None = None


class ResponsesGrammar:
    """A message with one part of text; of models that reason or call, items as they come."""

    media = b"application/json"
    headers = sse.HEADERS
    silence = sse.SILENCE

    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        self.has_logprobs = resolved.job.params.logprobs is not None
        self._resolved = resolved
        self._envelope = envelope
        self._show = msgspec.convert(resolved.show, ResponseShow)
        self.writer = EventWriter()
        self._items = OutputItems(self.writer, envelope.id.removeprefix("resp_"))
        self._is_read = resolved.job.reading is not None
        self._finish: str | None = None
        self._logprobs = ChatLogprobs(TokenNames(tokenizer))

    def opening(self, tally: Tally) -> Iterator[Parts]:
        begun = encode(self._response("in_progress", None))
        yield self._event("created", b'"response":', begun)
        yield self._event("in_progress", b'"response":', begun)
        if not self._is_read:
            yield from self._items.open_message()

    def read(self, delta: Delta) -> Work[None]:
        if self.has_logprobs:
            said = delta.logprobs
            if self._is_read:
                pairs = zip(said, delta.is_content, strict=True)
                said = tuple(one for one, is_content in pairs if is_content)
            yield from self._logprobs.add(said)

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        self._finish = delta.finish
        if self._is_read:
            return self._tell(delta)
        entries = self._taken()
        return self._items.say(delta.text, entries) if delta.text or entries else []

    def _tell(self, delta: Delta) -> list[Parts]:
        """Logprobs come with the text of the first message."""
        if not self.has_logprobs:
            return self._items.tell(delta.pieces)
        kinds = [isinstance(piece, CallBegin | CallArguments) for piece in delta.pieces]
        calls = kinds.index(True) if any(kinds) else len(kinds)
        before = delta.pieces[:calls]
        events = self._items.tell([x for x in before if isinstance(x, Thought)])
        text = "".join(x.text for x in before if isinstance(x, Said))
        entries = self._taken()
        if text or entries:
            events += self._items.say(text, entries)
        return events + self._items.tell(delta.pieces[calls:])

    def ending(self, tally: Tally) -> Iterator[Parts]:
        status = self._status()
        yield from self._items.close(status)
        response = filled(self._response(status, tally), listed(self._items.done))
        yield self._event(status, b'"response":', *response)

    def failure(self, error: KvasirError) -> bytes:
        failed = self._response("failed", None, error)
        return b"".join(self._event("failed", b'"response":', encode(failed)))

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        yield
        (choice,) = choices
        self._finish = choice.finish
        if self._is_read:
            whole = Delta(0, pieces=tuple(choice.pieces))
            self._tell(whole)
        else:
            self._items.say(choice.text, self._taken())
        status = self._status()
        self._items.close(status)
        return filled(self._response(status, tally), listed(self._items.done))

    def waiting(self, status: str) -> bytes:
        """The response before its end."""
        return encode(self._response(status, None))

    def _taken(self) -> bytearray:
        """Logprobs that are not told yet."""
        return self._logprobs.entries() if self.has_logprobs else bytearray()

    def _status(self) -> str:
        return "incomplete" if self._finish == "length" else "completed"

    def _completed(self) -> int:
        known = self._envelope.completed
        return int(time.time()) if known is None else known

    def _event(self, kind: str, *parts: bytes | bytearray) -> Parts:
        return self.writer.event(kind, *parts)

    def _response(
        self,
        status: str,
        tally: Tally | None,
        error: KvasirError | None = None,
    ) -> Json:
        """``output`` is a HOLE once there is a ``tally``."""
        params = self._resolved.job.params
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        found: Json = {
            "id": self._envelope.id,
            "object": "response",
            "created_at": self._envelope.created,
            "completed_at": self._completed() if status == "completed" else None,
            "status": status,
            "error": None if error is None else {"code": error.code, "message": error.message},
            "incomplete_details": reason,
            "model": self._resolved.model,
            "system_fingerprint": self._resolved.fingerprint,
            "output": [] if tally is None else HOLE,
            "usage": None if tally is None else response_usage(tally),
            **{name: getattr(params, name) for name in OPENAI},
            **msgspec.structs.asdict(self._show),
        }
        if self._resolved.warnings:
            found["warnings"] = self._resolved.warnings
        return found


ENDS = tuple(b"event: response.%b\n" % end for end in (b"completed", b"incomplete", b"failed"))


class _LastEvent(msgspec.Struct):
    response: msgspec.Raw


def response_in(events: Sequence[Parts]) -> bytes | None:
    """The response that the last of ``events`` tells, if it is the last of its stream."""
    if not events or not events[-1][0].startswith(ENDS):
        return None
    data = b"".join(events[-1]).partition(b"data: ")[2]
    return bytes(msgspec.json.decode(data, type=_LastEvent).response)


def response_usage(tally: Tally) -> ResponseUsage:
    return {
        "input_tokens": tally.n_prompt,
        "input_tokens_details": {"cached_tokens": tally.n_cached},
        "output_tokens": tally.n_output,
        "output_tokens_details": {"reasoning_tokens": tally.n_reasoning},
        "total_tokens": tally.n_prompt + tally.n_output,
    }
