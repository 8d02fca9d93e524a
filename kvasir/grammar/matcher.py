"""Grammars of the llguidance library over a model's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from kvasir.grammar.refusals import refused
from kvasir.grammar.thinking import special_bytes
from kvasir.grammar.vocabulary import Vocabulary, vocabulary_of
from kvasir.sampling.masks import Bits
from kvasir.tokenizer.load import load_tokenizer
from kvasir.weights.default import default_model
from kvasir.weights.source import open_model

MAX_LEXER_STATES = 50_000
"""Of 1 to 2 kB each; the library's own limit is 250,000."""


class GrammarTokens:
    """The library's view of one vocabulary; made once, a tenth of a second for 50,000 tokens."""

    def __init__(self, vocabulary: Vocabulary, n_ids: int) -> None:
        """``n_ids``: those of the model, which may be more than have a meaning."""
        import llguidance  # megabytes: only where a grammar is asked for

        self._library = llguidance
        self._ends = frozenset(i for i in vocabulary.eos_ids if i < n_ids)
        self._vocabulary = vocabulary
        self.trie = llguidance.LLTokenizer(
            _Wrapped(vocabulary),  # type: ignore[arg-type]
            n_vocab=n_ids,
            eos_token=sorted(self._ends),
        )
        self._limits = llguidance.LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
        )

    def bytes_of(self, token: int) -> bytes:
        """What ``token`` writes; of one that no text spells, what stands for it."""
        if token in self._vocabulary.special_ids:
            return special_bytes(token)
        tokens = self._vocabulary.tokens
        return tokens[token] if token < len(tokens) else b""

    def compile(self, text: str) -> Matcher:
        """Gives the GIL back meanwhile. Raises InvalidGrammar and UnsupportedSchema."""
        made = self._library.LLMatcher(self.trie, text, log_level=0, limits=self._limits)
        if made.is_error():
            raise refused(_reason(made.get_error()), text)
        return Matcher(made, self._ends)


def load_tokens(path: str | None, n_ids: int) -> GrammarTokens:
    """Of the model at ``path``, which has ``n_ids`` logits: half a second. Raises ModelError."""
    source = open_model(path if path is not None else default_model())
    return GrammarTokens(vocabulary_of(load_tokenizer(source)), n_ids)


class Matcher:
    """Where one answer stands in its grammar. The library has no state behind an end; nothing
    follows it here."""

    def __init__(self, made: Any, ends: frozenset[int]) -> None:
        self._made = made
        self._ends = ends

    def copy(self) -> Matcher:
        return Matcher(self._made.deep_copy(), self._ends)

    def consume(self, tokens: Sequence[int]) -> bool:
        """Whether the answer goes on behind ``tokens``. Raises ValueError for what the grammar
        forbids."""
        n = next((i for i, token in enumerate(tokens) if token in self._ends), len(tokens))
        if n and not self._made.consume_tokens(list(tokens[:n])):
            raise ValueError(_reason(self._made.get_error()))
        if n < len(tokens) and not (n == len(tokens) - 1 and self.is_accepting):
            raise ValueError("the answer ends where its grammar does not")
        return n == len(tokens)

    def fill(self, path: Sequence[int], bits: Bits) -> None:
        """Set in ``bits`` what may follow after ``path``. Raises ValueError where the library
        gives up."""
        goes_on = self.consume(path)
        if goes_on:
            self._made.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if self._made.is_error():
                raise ValueError(_reason(self._made.get_error()))
        if path:
            self._made.rollback(len(path) - (not goes_on))

    @property
    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return bool(self._made.is_accepting())


class _Wrapped:
    """What the library asks of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id = vocabulary.eos_ids[0]
        self.bos_token_id = None
        self.tokens = list(vocabulary.tokens)
        self.special_token_ids = sorted(vocabulary.special_ids)
        self._encode = vocabulary.encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)


@cache
def library_version() -> str:
    import llguidance

    return str(llguidance.__version__)


def _reason(text: str) -> str:
    """Without the grammar that the library repeats."""
    lines = text.strip().split("\n")
    said = next((line for line in lines if line.startswith("error: ")), "")
    return f"{lines[0][:200]} {said[:200]}".strip()
