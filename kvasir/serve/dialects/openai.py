"""What OpenAI's two answers made of choices have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.serve import sse
from kvasir.serve.answer import Tally, Whole, usage
from kvasir.serve.asked import Asked
from kvasir.serve.dialects.spoken import finish_of
from kvasir.serve.errors import describe_error
from kvasir.serve.parts import HOLE, Parts, filled, listed
from kvasir.serve.protocol.choices import ChoiceFields, notes_of
from kvasir.serve.protocol.notes import ping_of
from kvasir.serve.protocol.sampling import StreamOptions, standing_of
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.toolcalls.pieces import Thought
from kvasir.validation.names import Names
from kvasir.validation.params import n_alternatives
from kvasir.validation.sampling import SamplingParams
from kvasir.validation.standing import check_salt, check_session

encode = msgspec.json.Encoder().encode


_GOES_ON = b',"finish_reason":null,"stop_reason":null}'


class Show(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an answer tells beside its choices and more of them than their text."""

    usage: bool = False
    """null in all but the last event."""
    usage_each: bool = False
    prompt_logprobs: bool = False
    token_ids: bool = False
    """Of the prompt and the answer."""
    metrics: bool = False
    """Times, in the end."""
    names_are_ids: bool = False
    """Of the tokens whose logprobs are told."""
    said: str = ""
    """What a chat's answer goes on with, in front of it."""
    reasoning: bool = True
    """Where the model's reasoning is known as such."""
    notes: Json = {}
    """What the client said, told again."""


def asked_of(
    request: ChoiceFields,
    dialect: str,
    params: SamplingParams,
    names: Names,
    warnings: tuple[str, ...],
) -> Asked:
    """``request`` but for its prompts. Raises RequestError (400)."""
    options = request.stream_options or StreamOptions()
    show = Show(
        options.include_usage,
        options.include_usage and options.continuous_usage_stats,
        prompt_logprobs=request.prompt_logprobs is not None,
        token_ids=request.return_token_ids,
        metrics=request.return_metrics,
        names_are_ids=request.return_tokens_as_token_ids,
        notes=notes_of(request),
    )
    return Asked(
        dialect=dialect,
        params=params,
        model=request.model,
        names=names,
        salt=check_salt(request.cache_salt),
        session=check_session(request.session_id),
        standing=standing_of(request),
        length_penalty=request.length_penalty if request.use_beam_search else None,
        early_stopping=request.early_stopping,
        stream=request.stream,
        stream_interval=request.stream_interval,
        ping=ping_of(request.sse_ping_interval),
        warnings=warnings,
        show=msgspec.to_builtins(show),
    )


class ChoiceGrammar(ABC):
    """Whole answers and events are one envelope around a list of choices; an event has one."""

    media = b"application/json"
    headers = sse.HEADERS
    silence = sse.SILENCE

    def __init__(
        self, resolved: Resolved, envelope: Envelope, *, kind: str, chunk_kind: str
    ) -> None:
        """``kind``: ``object`` of the whole answer; ``chunk_kind``: of an event."""
        show = msgspec.convert(resolved.show, Show)
        self._show, self._notes = show, dict(show.notes)
        if resolved.warnings:
            self._notes["warnings"] = resolved.warnings
        self._tells_logprobs = n_alternatives(resolved.job.params) is not None
        self.has_logprobs = self._tells_logprobs or show.prompt_logprobs
        self._resolved = resolved
        self._envelope = envelope
        self._kind = kind
        self._head = b"data: " + encode(self._wrap([], chunk_kind))[: -len("]}")]
        self._tells_text_alone = not (
            self.has_logprobs or show.token_ids or show.usage_each or resolved.job.reading
        )
        """Whether an event of a choice that goes on tells its text, and else what all do."""
        self._tail = _GOES_ON + b"]" + (b',"usage":null' if show.usage else b"") + b"}\n\n"
        """What follows the logprobs in such an event."""

    def _wrap(self, choices: Sequence[Json] | msgspec.Raw, kind: str) -> Json:
        return {
            "id": self._envelope.id,
            "object": kind,
            "created": self._envelope.created,
            "model": self._resolved.model,
            "system_fingerprint": self._resolved.fingerprint,
            "choices": choices,
        }

    def _event(self, choice: Parts, tally: Tally) -> Parts:
        return [self._head, *choice, b"]" + self._usage(tally) + b"}\n\n"]

    def _usage(self, tally: Tally) -> bytes:
        if not self._show.usage:
            return b""
        return b',"usage":' + (encode(usage(tally)) if self._show.usage_each else b"null")

    def opening(self, tally: Tally) -> Iterator[Parts]:
        """The first event carries the notes."""
        notes = self._all_notes()
        told = b"," + encode(notes)[1:-1] if notes else b""
        for choice in self._first_choices() or ([b""] if notes else []):
            yield [self._head, choice, b"]", told, self._usage(tally), b"}\n\n"]
            told = b""

    def _first_choices(self) -> list[bytes]:
        """Those of the events before the first token."""
        return []

    def ending(self, tally: Tally) -> Iterator[Parts]:
        told = b',"usage":' + encode(usage(tally)) if self._show.usage else b""
        if self._show.metrics:
            told += b',"metrics":' + encode(tally.report())
        if told:
            yield [self._head + b"]" + told + b"}\n\n"]
        yield [sse.DONE]

    def failure(self, error: KvasirError) -> bytes:
        return sse.event(describe_error(error))

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        found = []
        for index, choice in enumerate(choices):
            found.append(self._choice(index, choice))
            yield
        body = {**self._wrap(HOLE, self._kind), "usage": usage(tally), **self._all_notes()}
        if self._show.metrics:
            body["metrics"] = tally.report()
        return self._filled(body, listed(found))

    def _all_notes(self) -> Json:
        return self._notes

    def _filled(self, body: Json, choices: Parts) -> Parts:
        return filled(body, choices)

    @abstractmethod
    def _choice(self, index: int, choice: Whole) -> Parts:
        """``index``: in the answer."""

    def _goes_on_with_text(self, delta: Delta) -> bool:
        """Whether its event is ``_head``, a beginning of the choice up to its logprobs, and
        ``_tail``: the bytes that ``_worded`` gives, which words every delta."""
        return self._tells_text_alone and delta.finish is None and bool(delta.text)

    @abstractmethod
    def _worded(self, delta: Delta, tally: Tally) -> list[Parts]:
        """Events of any delta."""

    def _is_news(self, delta: Delta) -> bool:
        """Whether an event has anything to tell of ``delta``."""
        if delta.text or delta.finish is not None or self._says(delta):
            return True
        has_logprobs = self._tells_logprobs and bool(delta.logprobs)
        return has_logprobs or (self._show.token_ids and bool(delta.tokens))

    def _says(self, delta: Delta) -> bool:
        """Whether there is reasoning to tell, or a call."""
        return any(self._show.reasoning or not isinstance(x, Thought) for x in delta.pieces)

    def _ids(self, delta: Delta) -> bytes:
        """Of an event, where they are wanted."""
        return b',"token_ids":' + encode(delta.tokens) if self._show.token_ids else b""


def finished(delta: Delta) -> bytes:
    """The end of a choice in an event."""
    if delta.finish is None:
        return _GOES_ON
    return b',"finish_reason":%b,"stop_reason":%b}' % (
        encode(finish_of(delta.finish, has_calls=delta.has_calls)),
        encode(delta.stop_reason),
    )
