"""Ends of earlier answers, for drafts of later ones: bounded, and apart for each context."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import NamedTuple

from kvasir.core.request import Context
from kvasir.speculate.text import Occurrence, Text, TextIndex

MIN_OUTPUTS = 2
"""Of an answer that is kept: each token of beams is one of its own."""
BETWEEN = -1
"""Stands behind each answer: no token is."""
N_LEAD = 64
"""Tokens of the prompt that are kept before an answer: what its first tokens follow."""
N_OVERHEAD = 160
"""Tokens that a part counts as beside its own, of 12 bytes: a client may have any number of
contexts."""
N_CAUGHT_UP = 4096
"""Tokens of a part that are read again with each answer, where its table has grown."""


class Precedent(NamedTuple):
    length: int
    """Tokens that are equal."""
    tokens: tuple[int, ...]
    """That followed them."""


class AnswerStore:
    """Of each context two parts, one that grows and the one before it. When the first has half of
    what all contexts may have, the second goes, and when these have more together, the context goes
    in which an answer ended longest ago."""

    def __init__(self, n_most: int, make_index: Callable[[], TextIndex]) -> None:
        """``n_most``: tokens in all."""
        self.n_tokens = 0
        self._n_part = n_most // 2 - N_OVERHEAD
        self._n_most = 2 * (n_most // 2)
        self._make_index = make_index
        self._parts: OrderedDict[Context, list[_Volume]] = OrderedDict()

    def add(self, context: Context, tokens: Sequence[int], n_prompt: int, n_most: int) -> None:
        """An answer, behind the end of its prompt: the first ``n_most`` tokens."""
        start = max(0, n_prompt - N_LEAD)
        n_most = min(n_most, self._n_part - 1)
        if len(tokens) < n_prompt + MIN_OUTPUTS or n_most <= 0:
            return
        kept = array("i", [*tokens[start : start + n_most], BETWEEN])
        parts = self._parts.setdefault(context, [])
        self._parts.move_to_end(context)
        if not parts or len(parts[0].tokens) + len(kept) > self._n_part:
            self._forget(parts[1:])
            parts[:] = [_Volume(self._make_index()), *parts[:1]]
            self.n_tokens += N_OVERHEAD
        parts[0].add(kept)
        self.n_tokens += len(kept)
        while self.n_tokens > self._n_most:
            self._forget(self._parts.popitem(last=False)[1])

    def find(self, context: Context, tail: Sequence[int], n_most: int, k: int) -> Precedent:
        """The longest place, of at most ``n_most`` tokens, that ends as ``tail`` does, among the
        answers of an equal context, and at most ``k`` tokens that follow there."""
        found = Precedent(0, ())
        for part in self._parts.get(context, ()):
            match = part.text.match(tail, n_most)
            if match.length > found.length:
                found = Precedent(match.length, part.following(match, k))
        return found

    def _forget(self, parts: Sequence[_Volume]) -> None:
        self.n_tokens -= sum(len(part.tokens) + N_OVERHEAD for part in parts)


class _Volume:
    def __init__(self, index: TextIndex) -> None:
        self.tokens = array("i")
        self.text = Text(self.tokens, index)

    def add(self, tokens: array[int]) -> None:
        self.tokens.extend(tokens)
        self.text.read(len(self.tokens), len(tokens) + N_CAUGHT_UP)

    def following(self, match: Occurrence, k: int) -> tuple[int, ...]:
        """Up to the end of the answer."""
        return tuple(takewhile(lambda token: token != BETWEEN, self.text.following(match, k)))
