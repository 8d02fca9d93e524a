"""Dialects whose answers are one text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import msgspec

from kvasir.core.errors import KvasirError
from kvasir.serve.answer import Tally, Whole
from kvasir.serve.parts import Parts
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.tokenizer import Tokenizer

encode = msgspec.json.Encoder().encode


class SingleGrammar(ABC):
    """Remembers what was told; how a piece and the end are told is the dialect's own."""

    media = b"application/json"
    headers: Sequence[tuple[bytes, bytes]] = ()
    silence = b""
    has_logprobs = False

    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        self._resolved = resolved
        self._envelope = envelope
        self._tokenizer = tokenizer
        self._told = Whole()

    def opening(self, tally: Tally) -> Iterator[Parts]:
        yield from ()

    def read(self, delta: Delta) -> Work[None]:
        yield from ()

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        yield
        return [encode(self._answer(choices, tally))]

    @abstractmethod
    def events(self, delta: Delta, tally: Tally) -> list[Parts]: ...

    @abstractmethod
    def ending(self, tally: Tally) -> Iterator[Parts]: ...

    @abstractmethod
    def failure(self, error: KvasirError) -> bytes: ...

    @abstractmethod
    def _answer(self, choices: Sequence[Whole], tally: Tally) -> Json:
        """The answer that is not streamed."""


class PieceGrammar(SingleGrammar):
    """Tells each piece of text as an event, and in the end what became of all."""

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        self._told.add(delta)
        return [self._piece(delta)] if delta.text else []

    def ending(self, tally: Tally) -> Iterator[Parts]:
        yield self._last(self._told, tally)

    @abstractmethod
    def _piece(self, delta: Delta) -> Parts:
        """The event of a piece of text."""

    @abstractmethod
    def _last(self, told: Whole, tally: Tally) -> Parts:
        """The last event."""
