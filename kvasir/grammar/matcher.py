"""Grammars of the llguidance library over a model's vocabulary."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from kvasir.core.params import mask_words
from kvasir.grammar import c_binding
from kvasir.grammar.binding import Library, Stand, TokenSpellings
from kvasir.grammar.followers import special_bytes
from kvasir.grammar.python_binding import PythonLibrary
from kvasir.grammar.refusals import refused
from kvasir.grammar.vocabulary import Vocabulary, vocabulary_of
from kvasir.sampling.masks import Bits, NativeFill, first_allowed
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.default import default_model
from kvasir.weights.source import open_model

_COUNTING = re.compile(r"\b(max_tokens|stop)\b")
"""Attributes of a Lark rule with which the library takes nothing back."""


class GrammarTokens:
    """The library's view of one vocabulary; made once, a tenth of a second for 50,000 tokens."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        n_ids: int,
        library: Callable[[TokenSpellings], Library] | None = None,
    ) -> None:
        """``n_ids``: those of the model, which may be more than have a meaning. ``library``:
        default: its C interface where that is known."""
        self._vocabulary = vocabulary
        self._n_words = mask_words(n_ids)
        self._ends = frozenset(i for i in vocabulary.eos_ids if i < n_ids)
        self.brace = next(
            (i for i, token in enumerate(vocabulary.tokens[:n_ids]) if token == b"{"), -1
        )
        """The token that begins an object by itself; -1: there is none."""
        self._library = (library or _library)(_table(vocabulary, n_ids, sorted(self._ends)))

    def bytes_of(self, token: int) -> bytes:
        """What ``token`` writes; of one that no text spells, what stands for it."""
        if token in self._vocabulary.special_ids:
            return special_bytes(token)
        tokens = self._vocabulary.tokens
        return tokens[token] if token < len(tokens) else b""

    def compile(self, text: str) -> Matcher:
        """Gives the GIL back meanwhile. Raises InvalidGrammar and UnsupportedSchema."""
        try:
            made = self._library.compile(text)
        except ValueError as error:
            raise refused(str(error), text) from None
        matcher = Matcher(made, self._ends)
        if _COUNTING.search(text) and not _goes_back(matcher.copy(), self._n_words):
            return Matcher(made, self._ends, goes_back=False)
        return matcher


def load_tokens(path: str | None, n_ids: int) -> GrammarTokens:
    """Of the model at ``path``, which has ``n_ids`` logits: half a second. Raises ModelError."""
    source = open_model(path if path is not None else default_model())
    return GrammarTokens(vocabulary_of(load_tokenizer(source)), n_ids)


class Matcher:
    """Where one answer stands in its grammar. The library has no state behind an end; nothing
    follows it here."""

    def __init__(self, stand: Stand, ends: frozenset[int], *, goes_back: bool = True) -> None:
        """``goes_back``: whether the library takes tokens back; else paths are asked of copies."""
        self._stand = stand
        self._ends = ends
        self._goes_back = goes_back

    def copy(self) -> Matcher:
        return Matcher(self._stand.copy(), self._ends, goes_back=self._goes_back)

    def consume(self, tokens: Sequence[int]) -> bool:
        """Whether the answer goes on behind ``tokens``. Raises ValueError for what the grammar
        forbids."""
        n = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        if n:
            self._stand.consume(tokens[:n])
        if n < len(tokens) and not (n == len(tokens) - 1 and self.is_accepting):
            raise ValueError("the answer ends where its grammar does not")
        return n == len(tokens)

    def fill(self, path: Sequence[int], bits: Bits) -> None:
        """Set in ``bits`` what may follow after ``path``. Raises ValueError where the library
        gives up."""
        if path and not self._goes_back:
            ahead = self.copy()
            if ahead.consume(path):
                ahead.fill((), bits)
            return
        goes_on = self.consume(path)
        if goes_on:
            self._stand.fill(bits)
        if path:
            self._stand.rollback(len(path) - (not goes_on))

    def native(self, tokens: Sequence[int]) -> NativeFill | None:
        """What makes the mask behind ``tokens``; None where one of them ends the answer."""
        return None if not self._ends.isdisjoint(tokens) else self._stand.native(tokens)

    def filled(self, tokens: Sequence[int]) -> None:
        """Whoever made that mask has consumed them."""

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return self._stand.is_accepting()


def _goes_back(matcher: Matcher, n_words: int) -> bool:
    """Whether a token that may come first is taken back; ``matcher`` is worth nothing then."""
    bits = np.zeros(n_words, np.uint32)
    try:
        matcher.fill((), bits)
        token = first_allowed(bits)
        if token >= 0:
            matcher.fill((token,), bits)
    except ValueError:
        return False
    return True


def _library(table: TokenSpellings) -> Library:
    found = c_binding.library()
    return PythonLibrary(table) if found is None else c_binding.CLibrary(found, table)


def _table(vocabulary: Vocabulary, n_ids: int, ends: Sequence[int]) -> TokenSpellings:
    tokens = [*vocabulary.tokens[:n_ids], *[b""] * (n_ids - len(vocabulary.tokens))]
    special = sorted(i for i in vocabulary.special_ids if i < n_ids)
    return TokenSpellings(tokens, special, ends, vocabulary.encode)


@cache
def library_version() -> str:
    import llguidance

    return str(llguidance.__version__)
