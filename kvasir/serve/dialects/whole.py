"""Answers that are never streamed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvasir.core.errors import KvasirError
from kvasir.serve.answer import Tally, usage
from kvasir.serve.parts import Parts
from kvasir.serve.resolved import Envelope, Json, Resolved
from kvasir.serve.slices import Work
from kvasir.text.choice import Delta
from kvasir.tokenizer.tokenizer import Tokenizer


class WholeGrammar:
    """What wholes have in common; ``whole`` is left to say."""

    media = b"application/json"
    headers: Sequence[tuple[bytes, bytes]] = ()
    silence = b""
    has_logprobs = False

    def __init__(self, resolved: Resolved, envelope: Envelope, tokenizer: Tokenizer) -> None:
        self._resolved = resolved
        self._envelope = envelope

    def read(self, delta: Delta) -> Work[None]:
        yield from ()

    def opening(self, tally: Tally) -> Iterator[Parts]:
        yield from ()

    def events(self, delta: Delta, tally: Tally) -> list[Parts]:
        return []

    def ending(self, tally: Tally) -> Iterator[Parts]:
        yield from ()

    def failure(self, error: KvasirError) -> bytes:
        return b""

    def _wrapped(self, prefix: Json, tally: Tally) -> Json:
        """OpenAI's envelope around ``prefix``: a list, what it cost, and what made it."""
        spent = {name: n for name, n in usage(tally).items() if name != "completion_tokens"}
        made = {k: v for k, v in self._resolved.show.items() if k in ("pooling", "method")}
        warned = {"warnings": self._resolved.warnings} if self._resolved.warnings else {}
        return {
            "id": self._envelope.id,
            "object": "list",
            "created": self._envelope.created,
            "model": self._resolved.model,
            **prefix,
            "usage": spent,
            **made,
            **warned,
        }
