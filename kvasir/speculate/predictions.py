"""Indices of what clients predict of their answers: one for all choices of a request."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvasir.speculate.base import Known
from kvasir.speculate.text import Text, TextIndex

MAX_PREDICTED = 4_000_000
"""Tokens of predictions that are indexed at a time, of all requests: these are in no KV block,
which would bound them. Those of others wait."""


@dataclass(slots=True)
class _PredictedText:
    tokens: tuple[int, ...]
    text: Text
    n_requests: int = 0


class Predictions:
    """Equal ones are one: a text says the same to whoever looks into it."""

    def __init__(self, make_index: Callable[[], TextIndex]) -> None:
        self.n_tokens = 0
        self._make_index = make_index
        self._by_tokens: dict[tuple[int, ...], _PredictedText] = {}
        self._by_request: dict[int, _PredictedText] = {}

    def of(self, known: Known) -> Text | None:
        """Of a request that has one; None while there is no room for it."""
        found = self._by_request.get(known.id) or self._begun(tuple(known.prediction))
        if found is None:
            return None
        if known.id not in self._by_request:
            self._by_request[known.id] = found
            found.n_requests += 1
        return found.text

    def ended(self, known: Known) -> None:
        found = self._by_request.pop(known.id, None)
        if found is None:
            return
        found.n_requests -= 1
        if not found.n_requests:
            del self._by_tokens[found.tokens]
            self.n_tokens -= len(found.tokens)

    def _begun(self, tokens: tuple[int, ...]) -> _PredictedText | None:
        """A tuple is hashed as a whole: once for each request."""
        found = self._by_tokens.get(tokens)
        if found is None and self.n_tokens + len(tokens) <= MAX_PREDICTED:
            found = self._by_tokens[tokens] = _PredictedText(
                tokens, Text(tokens, self._make_index())
            )
            self.n_tokens += len(tokens)
        return found
