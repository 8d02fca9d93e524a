"""Drafts without a model: what followed the newest tokens when they stood there before.

``ngram`` looks in the request's own prompt and output (Saxena: Prompt lookup decoding, 2023);
``suffix`` takes longer matches and looks in earlier answers, too (SuffixDecoding, arXiv
2411.04975). Both look in what the client predicted of the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import takewhile

from kvasir.speculate.base import Draft, Known, Proposer
from kvasir.speculate.predictions import Predictions
from kvasir.speculate.store import AnswerStore, Precedent
from kvasir.speculate.text import MakeIndex, PlainIndex, Text

MAX_READ = 32_768
"""Tokens that are indexed in a step, of all texts, in 0.4 ms: longer prompts take several before
anything is drafted for them."""
MAX_KEY = 3
"""Tokens by which places are found; more are compared."""

NOTHING = Precedent(0, ())


class Lookup(Proposer):
    def __init__(
        self,
        min_match: int,
        max_match: int,
        n_stored: int = 0,
        make_index: MakeIndex = PlainIndex,
    ) -> None:
        """Matches of ``min_match`` to ``max_match`` tokens. ``n_stored``: tokens of earlier answers
        that are kept; 0: none. ``make_index``: of each text."""
        self._min_match, self._max_match = min_match, max_match
        n_key = min(min_match, MAX_KEY)
        self._make_index = partial(make_index, n_key)
        self._texts: dict[int, Text] = {}
        self._predictions = Predictions(self._make_index)
        self._n_readable = 0  # in this step
        self._store = AnswerStore(n_stored, self._make_index) if n_stored else None

    def propose(self, requests: Sequence[Known], k: int) -> list[Draft]:
        self._n_readable = MAX_READ
        return [self._draft(known, k) for known in requests]

    def ended(self, known: Known) -> None:
        self._texts.pop(known.id, None)
        self._predictions.ended(known)
        if self._store is not None:
            self._store.add(known.context, known.tokens, known.n_prompt, MAX_READ)

    @property
    def n_tokens(self) -> int:
        """Of the texts that are held: those of running requests, and what is stored."""
        stored = 0 if self._store is None else self._store.n_tokens
        texts = sum(len(text.tokens) for text in self._texts.values())
        return stored + self._predictions.n_tokens + texts

    def _draft(self, known: Known, k: int) -> Draft:
        tokens = known.tokens
        text = self._texts.get(known.id)
        if text is None:
            text = self._texts[known.id] = Text(tokens, self._make_index())
        text.tokens = tokens  # a choice has its own list once it starts
        self._n_readable -= text.read(len(tokens), self._n_readable)
        if not text.has_read(len(tokens)):
            return Draft()
        match = text.match(tokens, self._max_match)
        predicted = self._predicted(known, k)
        found = max(Precedent(match.length, ()), predicted, key=lambda one: one.length)
        if self._store is not None and found.length < self._max_match:
            stored = self._store.find(known.context, tokens, self._max_match, k)
            found = max(found, stored, key=lambda one: one.length)
        if found.length < self._min_match:
            return Draft()
        drafted = found.tokens or tuple(text.following(match, k))
        n_predicted = n_alike(drafted, predicted.tokens)
        return Draft(drafted, evidence=found.length, n_predicted=n_predicted)

    def _predicted(self, known: Known, k: int) -> Precedent:
        """What follows in the prediction of the answer, once all of it is read."""
        tokens = known.prediction
        if not tokens:
            return NOTHING
        text = self._predictions.of(known)
        if text is None:
            return NOTHING
        self._n_readable -= text.read(len(tokens), self._n_readable)
        if not text.has_read(len(tokens)):
            return NOTHING
        match = text.match(known.tokens, self._max_match)
        if match.length < self._min_match:
            return NOTHING
        return Precedent(match.length, tuple(tokens[match.end : match.end + k]))


def n_alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))
