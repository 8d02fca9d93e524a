"""What every response carries, and what a choice adds up to when it is not streamed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from kvasir.serve.parts import HOLE, Parts, filled, listed
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields around the choices. The id is the server's own: never taken from the client."""

    id: str
    kind: str
    """``object`` of the response, e.g. "chat.completion"."""
    created: int
    model: str
    fingerprint: str
    warnings: tuple[str, ...]

    def wrap(self, choices: Sequence[Json] | msgspec.Raw, *, kind: str | None = None) -> Json:
        return {
            "id": self.id,
            "object": kind or self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
        }


def new_envelope(
    prefix: str, kind: str, model: str, fingerprint: str, warnings: tuple[str, ...]
) -> Envelope:
    name = f"{prefix}-{secrets.token_hex(16)}"
    return Envelope(name, kind, int(time.time()), model, fingerprint, warnings)


def usage(n_prompt: int, n_output: int, n_cached: int) -> Json:
    return {
        "prompt_tokens": n_prompt,
        "total_tokens": n_prompt + n_output,
        "completion_tokens": n_output,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }


@dataclass(slots=True)
class Whole:
    """All deltas of one choice but their logprobs, which the answer gathers."""

    texts: list[str] = field(default_factory=list)
    n_tokens: int = 0
    n_cached: int = 0
    finish: str | None = None
    stop_reason: int | str | None = None

    def add(self, delta: Delta) -> None:
        self.texts.append(delta.text)
        self.n_tokens += delta.n_tokens
        self.n_cached += delta.n_cached
        self.finish, self.stop_reason = delta.finish, delta.stop_reason

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(frozen=True, slots=True)
class Chunk:
    """One event of a stream."""

    value: Json
    parts: Parts
    """What fills its HOLE, if it has one."""


class Answer(Protocol):
    """How one endpoint words its response."""

    @property
    def envelope(self) -> Envelope: ...

    @property
    def chunk_kind(self) -> str:
        """``object`` of a chunk."""
        ...

    @property
    def has_logprobs(self) -> bool:
        """Whether there is much to word in a delta."""
        ...

    def opening(self) -> list[Json]:
        """Chunks before the first token."""
        ...

    def read(self, delta: Delta) -> Work[None]:
        """Words the logprobs of ``delta``, for the next ``chunks`` or for ``whole``."""
        ...

    def chunks(self, delta: Delta) -> list[Chunk]:
        """Chunks of a stream that tell ``delta``, the last that was read."""
        ...

    def whole(self, index: int, choice: Whole) -> Parts:
        """Choice ``index`` of a response that is not streamed, as JSON; asked for once."""
        ...


def worded(answer: Answer, choices: Sequence[Whole], counts: Json) -> Work[Parts]:
    """The response that is not streamed; ``counts`` are its usage."""
    found = []
    for index, choice in enumerate(choices):
        found.append(answer.whole(index, choice))
        yield
    body = {**answer.envelope.wrap(HOLE), "usage": counts}
    if answer.envelope.warnings:
        body["warnings"] = list(answer.envelope.warnings)
    return filled(body, listed(found))
