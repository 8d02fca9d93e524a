"""The library by its Python interface: of any version, and what the other one is held against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvasir.grammar.binding import MAX_LEXER_STATES, TokenSpellings, reason
from kvasir.sampling.masks import Bits, NativeFill


class PythonLibrary:
    """Tokens are consumed under the GIL, and answers of one grammar wait for each other's masks:
    they share what is known of its words."""

    def __init__(self, table: TokenSpellings) -> None:
        import llguidance  # megabytes: only where a grammar is asked for

        self._library = llguidance
        self._trie = llguidance.LLTokenizer(
            _Wrapped(table),  # type: ignore[arg-type]
            n_vocab=len(table.tokens),
            eos_token=list(table.ends),
        )
        self._limits = llguidance.LLParserLimits(
            max_lexer_states=MAX_LEXER_STATES, verbose_errors=False
        )

    def compile(self, text: str) -> PythonStand:
        made = self._library.LLMatcher(self._trie, text, log_level=0, limits=self._limits)
        if made.is_error():
            raise ValueError(reason(made.get_error()))
        return PythonStand(made)


class PythonStand:
    def __init__(self, made: Any) -> None:
        self._made = made

    def copy(self) -> PythonStand:
        return PythonStand(self._made.deep_copy())

    def consume(self, tokens: Sequence[int]) -> None:
        if not self._made.consume_tokens(list(tokens)):
            raise self._error()

    def fill(self, bits: Bits) -> None:
        self._made.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._made.is_error():
            raise self._error()

    def native(self, tokens: Sequence[int]) -> NativeFill | None:
        return None

    def rollback(self, n_tokens: int) -> None:
        if not self._made.rollback(n_tokens):
            raise self._error()

    def is_accepting(self) -> bool:
        return bool(self._made.is_accepting())

    def _error(self) -> ValueError:
        return ValueError(reason(self._made.get_error()))


class _Wrapped:
    """What the library asks of a tokenizer."""

    is_tokenizer_wrapper = True

    def __init__(self, table: TokenSpellings) -> None:
        self.eos_token_id = table.ends[0]
        self.bos_token_id = None
        self.tokens = list(table.tokens)
        self.special_token_ids = list(table.special_ids)
        self._encode = table.encode

    def __call__(self, text: bytes | str) -> list[int]:
        return self._encode(text.decode() if isinstance(text, bytes) else text)
