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
    """Tells each piece of text as an event, and in the end what became of all."""

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

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        self._told.add(delta)
        return [self._piece(delta)] if delta.text else []

    def ending(self, tally: Tally) -> Iterator[Parts]:
        yield self._last(self._told, tally)

    def whole(self, choices: Sequence[Whole], tally: Tally) -> Work[Parts]:
        yield
        (choice,) = choices
        return [encode(self._answer(choice, tally))]

    @abstractmethod
    def failure(self, error: KvasirError) -> bytes: ...

    @abstractmethod
    def _piece(self, delta: Delta) -> Parts:
        """The event of a piece of text."""

    @abstractmethod
    def _last(self, told: Whole, tally: Tally) -> Parts:
        """The last event."""

    @abstractmethod
    def _answer(self, choice: Whole, tally: Tally) -> Json:
        """The answer that is not streamed."""
