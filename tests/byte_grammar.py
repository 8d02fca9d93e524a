"""Grammars over a vocabulary of the 256 bytes: what texts do they take?"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from kvasir.core.errors import RequestError
from kvasir.grammar.binding import Library, TokenSpellings
from kvasir.grammar.constraint import Constraint, schema_grammar
from kvasir.grammar.matcher import GrammarTokens, Matcher
from kvasir.grammar.vocabulary import Vocabulary

EOS = 256


@cache
def byte_tokens(library: Callable[[TokenSpellings], Library] | None = None) -> GrammarTokens:
    tokens = [*(bytes([i]) for i in range(256)), b"<eos>"]
    encode = lambda text: list(text.encode())  # noqa: E731
    return GrammarTokens(Vocabulary(tokens, frozenset({EOS}), (EOS,), encode), EOS + 1, library)


def takes(grammar: Constraint | Matcher, text: str) -> bool:
    """Whether ``text`` is a whole answer."""
    matcher = (
        byte_tokens().compile(grammar.text) if isinstance(grammar, Constraint) else grammar.copy()
    )
    try:
        matcher.consume(list(text.encode()))
    except ValueError:
        return False
    return matcher.is_accepting


def compiled(schema: object) -> Matcher | None:
    """None for what is refused."""
    try:
        return byte_tokens().compile(schema_grammar(schema).text)
    except RequestError:
        return None


def spelled(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
